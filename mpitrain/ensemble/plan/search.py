"""Which members train how far: all to the end, or by successive halving. Decisions depend on scores alone.

Settings are compared in blocks of neighbours, rung by rung: of n settings the best n / halving go on, each with all its
seeds and folds (Jamieson and Talwalkar, 2016, arXiv:1502.07943). Blocks do not wait for each other, and none for whom
is first to arrive, as in asynchronous halving (Li et al., 2020, arXiv:1810.05934): the history is the same on any
number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mpitrain.config import EnsembleSection
from mpitrain.ensemble.outcome import Results
from mpitrain.ensemble.plan.members import EnsemblePlan, Member


@dataclass(frozen=True)
class Stage:
    """The members of one block of settings on one rung."""

    block: int
    rung: int


@dataclass(frozen=True)
class Search:
    """The stages of an ensemble. `rungs` are the epochs after which decisions fall; the last is all of them."""

    members: Sequence[Member]
    rungs: Sequence[int]
    num_blocks: int
    block_size: int
    halving: int
    costs: Sequence[float] = ()

    def stages(self) -> list[Stage]:
        """Return all stages; those of higher rungs first, so that a block that can end does."""
        return [Stage(block, rung) for rung in reversed(range(len(self.rungs))) for block in range(self.num_blocks)]

    def settings_of(self, stage: Stage, results: Results) -> list[int]:
        """Return the settings that take part in a stage, in order; the results of the rung before must be there."""
        num_settings = max(member.setting for member in self.members) + 1
        first = stage.block * self.block_size
        settings = list(range(first, min(first + self.block_size, num_settings)))
        for rung in range(stage.rung):
            num_kept = max(1, len(settings) // self.halving)
            scores = {setting: self.score_of(setting, rung, results) for setting in settings}
            best = sorted((score, setting) for setting, score in scores.items() if math.isfinite(score))[:num_kept]
            settings = sorted(setting for _, setting in best)
        return settings

    def score_of(self, setting: int, rung: int, results: Results) -> float:
        """Return the mean score of a setting's members on a rung; infinite where one of them failed."""
        scores = [results[member.number, rung].score for member in self.members if member.setting == setting]
        if any(score is None for score in scores):
            return math.inf
        return math.fsum(score for score in scores if score is not None) / len(scores)

    def members_of(self, stage: Stage, results: Results) -> list[Member]:
        """Return the members of a stage, the most costly first: the last ones to end are then short."""
        chosen = set(self.settings_of(stage, results))
        costs = self.costs or [0.0] * len(self.members)
        members = [member for member in self.members if member.setting in chosen]
        return sorted(members, key=lambda member: (-costs[member.number], member.number))

    def is_complete(self, results: Results) -> bool:
        """Tell whether every stage has ended."""
        for block in range(self.num_blocks):
            for rung in range(len(self.rungs)):
                if any((one.number, rung) not in results for one in self.members_of(Stage(block, rung), results)):
                    return False
        return True


def plan_search(plan: EnsemblePlan) -> Search:
    """Return the stages of an ensemble's members."""
    section = plan.section
    num_settings = max(member.setting for member in plan.members) + 1
    size = min(section.halving_block or num_settings, num_settings)
    rungs = rungs_of(section, plan.config.training.epochs)
    return Search(plan.members, rungs, -(-num_settings // size), size, section.halving or 1)


def rungs_of(section: EnsembleSection, epochs: int) -> list[int]:
    """Return the epochs after which decisions fall, rising, the last of them all `epochs`."""
    rungs = []
    reached = section.first_epochs
    while section.halving is not None and reached < epochs:
        rungs.append(reached)
        reached *= section.halving
    return [*rungs, epochs]
