"""Which settings a search found best, and how much of their advantage chance alone would give."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mpitrain.config import RunConfig, render_yaml
from mpitrain.ensemble.outcome import Results
from mpitrain.ensemble.plan.members import EnsemblePlan, Member
from mpitrain.ensemble.plan.search import Search, Stage

BEST = "best.yaml"


@dataclass(frozen=True)
class Choice:
    """The best setting: the mean score of its members, lower is better, and those that it was compared with.

    `gap` is the median setting's score minus its own; `chance_gap` what the best of as many equal settings would show,
    by the spread over seeds alone; None where there are no two seeds, or no two settings.
    """

    setting: int
    members: Sequence[Member]
    score: float
    num_settings: int
    gap: float | None
    chance_gap: float | None

    @property
    def words(self) -> str:
        """What it was chosen by, and how far chance reaches."""
        if self.gap is None:
            return "the only setting that was trained to the end"
        of = f"best of {self.num_settings} settings by {self.gap:.2e} below their median"
        if self.chance_gap is None:
            return f"{of}; with two seeds or more (ensemble.members) chance could be told from skill"
        times = f"{self.gap / self.chance_gap:.1f} times" if self.chance_gap > 0 else "more than"
        return f"{of}, {times} what chance gives the best of as many equal ones ({self.chance_gap:.2e})"


def choose_best(plan: EnsemblePlan, search: Search, results: Results) -> Choice | None:
    """Return the setting with the least mean score among those trained to the end; None where there is none.

    Nothing is chosen before all stages have ended.
    """
    ended = _scores_on(search, len(search.rungs) - 1, results) if search.is_complete(results) else {}
    if not ended:
        return None
    score, setting = min((score, setting) for setting, score in ended.items())
    # In a search by halving a single setting may reach the last rung: then all are compared on the first one.
    rung = len(search.rungs) - 1 if len(ended) > 1 else 0
    compared = ended if len(ended) > 1 else _scores_on(search, rung, results)
    gap = statistics.median(compared.values()) - compared[setting] if len(compared) > 1 else None
    spread = _spread_over_seeds(search.members, sorted(compared), rung, results)
    num_members = sum(member.setting == setting for member in search.members)
    chance = None
    if gap is not None and spread is not None:
        chance = _expected_best(len(compared)) * spread / math.sqrt(num_members)
    members = [member for member in plan.members if member.setting == setting]
    return Choice(setting, members, score, len(compared), gap, chance)


def render_best(choice: Choice, plan: EnsemblePlan) -> str:
    """Return a `run.yaml` of the best settings, which says what they were chosen by."""
    named = choice.members[0].settings_words or "the settings as given"
    head = f"# {named}\n# mean score {choice.score:.6e}: {choice.words}\n"
    own = choice.members[0].config
    assert own is not None  # it was trained
    # A run of its own: with the ensemble's seed, data and split.
    data = plan.config.data
    kept: dict[str, Any] = {"split_seed": data.split_seed, "folds": data.folds, "fold": data.fold}
    kept |= {} if "data.data_path" in choice.members[0].varied else {"data_path": data.data_path}
    output = own.output.model_copy(update={"model_dir": RunConfig().output.model_dir})
    changed = {"seed": plan.config.seed, "data": own.data.model_copy(update=kept), "output": output}
    return head + render_yaml(own.model_copy(update=changed))


def _scores_on(search: Search, rung: int, results: Results) -> dict[int, float]:
    """Return the finite scores of the settings that have reached a rung with all their members."""
    known = {number for number, reached in results if reached == rung}
    settings = {member.setting for member in search.members}
    left_out = {member.setting for member in search.members if member.number not in known}
    scores = {setting: search.score_of(setting, rung, results) for setting in sorted(settings - left_out)}
    return {setting: score for setting, score in scores.items() if math.isfinite(score)}


def _spread_over_seeds(members: Sequence[Member], settings: Sequence[int], rung: int, results: Results) -> float | None:
    """Return the standard deviation over seeds, pooled over settings and folds; None where there is one seed."""
    squares, degrees = 0.0, 0
    groups: dict[tuple[int, int | None], list[float]] = {}
    for member in members:
        if member.setting in settings:
            score = results[member.number, rung].score
            groups.setdefault((member.setting, member.fold), []).extend([] if score is None else [score])
    for scores in groups.values():
        if len(scores) > 1:
            squares += statistics.variance(scores) * (len(scores) - 1)
            degrees += len(scores) - 1
    return math.sqrt(squares / degrees) if degrees else None


def _expected_best(count: int) -> float:
    """Return how far the best of `count` normal numbers is expected from their mean (Blom, 1958)."""
    return statistics.NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def stage_history(search: Search, results: Results) -> list[str]:
    """Return who took part in each stage, in order: the history of a search, the same on any number of ranks."""
    lines = []
    for block in range(search.num_blocks):
        for rung, epochs in enumerate(search.rungs):
            settings = search.settings_of(Stage(block, rung), results)
            lines.append(f"block {block}, {epochs} epochs: settings {', '.join(map(str, settings)) or 'none'}")
    return lines
