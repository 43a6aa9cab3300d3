"""The choice of the best settings of a search, and the advantage that chance alone would give them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mpitrain.config import RunConfig, render_yaml
from mpitrain.ensemble.outcome import Results
from mpitrain.ensemble.plan.members import EnsemblePlan, Member

BEST = "best.yaml"


@dataclass(frozen=True)
class Choice:
    """The best setting, its members, and their mean score: lower is better.

    `gap` is the median score of all settings minus `score`; `chance_gap` is the gap expected if all settings were
    equally good, from the spread over seeds alone. Both are None with one setting, `chance_gap` also with one seed.
    """

    setting: int
    members: Sequence[Member]
    score: float
    num_settings: int
    gap: float | None
    chance_gap: float | None

    @property
    def description(self) -> str:
        """Description of the choice: its gap, compared with the gap expected by chance."""
        if self.gap is None:
            return "the only setting with a score"
        of = f"best of {self.num_settings} settings by {self.gap:.2e} below their median"
        if self.chance_gap is None:
            return f"{of}; with two seeds or more (ensemble.members) it could be compared with chance"
        times = f"{self.gap / self.chance_gap:.1f} times" if self.chance_gap > 0 else "more than"
        return f"{of}, {times} the gap expected by chance ({self.chance_gap:.2e})"


def choose_best(plan: EnsemblePlan, results: Results) -> Choice | None:
    """Return the setting with the lowest mean score; None if there is none, or before all members have ended."""
    scores = _scores(plan.members, results) if len(results) == len(plan.members) else {}
    if not scores:
        return None
    score, setting = min((score, setting) for setting, score in scores.items())
    members = [member for member in plan.members if member.setting == setting]
    gap = statistics.median(scores.values()) - score if len(scores) > 1 else None
    spread = _spread_over_seeds(plan.members, sorted(scores), results)
    chance = None
    if gap is not None and spread is not None:
        chance = _expected_best(len(scores)) * spread / math.sqrt(len(members))
    return Choice(setting, members, score, len(scores), gap, chance)


def render_best(choice: Choice, plan: EnsemblePlan) -> str:
    """Return the best settings as YAML for a single run, with a comment on how they were chosen."""
    named = choice.members[0].settings_text or "the settings as given"
    head = f"# {named}\n# mean score {choice.score:.6e}: {choice.description}\n"
    own = choice.members[0].config
    assert own is not None  # it was trained
    # For a single run: with the ensemble's seed, data and split.
    data = plan.config.data
    kept: dict[str, Any] = {"split_seed": data.split_seed, "folds": data.folds, "fold": data.fold}
    kept |= {} if "data.data_path" in choice.members[0].varied else {"data_path": data.data_path}
    output = own.output.model_copy(update={"model_dir": RunConfig().output.model_dir})
    changed = {"seed": plan.config.seed, "data": own.data.model_copy(update=kept), "output": output}
    return head + render_yaml(own.model_copy(update=changed))


def _scores(members: Sequence[Member], results: Results) -> dict[int, float]:
    """Return the mean score of each setting for which all members have a finite score."""
    found: dict[int, list[float]] = {}
    for member in members:
        score = results[member.number].score
        found.setdefault(member.setting, []).append(math.inf if score is None else score)
    means = {setting: math.fsum(scores) / len(scores) for setting, scores in found.items()}
    return {setting: mean for setting, mean in means.items() if math.isfinite(mean)}


def _spread_over_seeds(members: Sequence[Member], settings: Sequence[int], results: Results) -> float | None:
    """Return the standard deviation over seeds, pooled over settings and folds; None with a single seed."""
    squares, degrees = 0.0, 0
    groups: dict[tuple[int, int | None], list[float]] = {}
    for member in members:
        if member.setting in settings:
            score = results[member.number].score
            groups.setdefault((member.setting, member.fold), []).extend([] if score is None else [score])
    for scores in groups.values():
        if len(scores) > 1:
            squares += statistics.variance(scores) * (len(scores) - 1)
            degrees += len(scores) - 1
    return math.sqrt(squares / degrees) if degrees else None


def _expected_best(count: int) -> float:
    """Return the expected distance of the best of `count` standard normal numbers from their mean (Blom, 1958)."""
    return statistics.NormalDist().inv_cdf((count - 0.375) / (count + 0.25))
