"""The summary at the end of a run: skill and losses, work and time, the hash of the weights, files, next commands."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mpitrain.durable_files import is_in_temporary_folder
from mpitrain.errors import one_line
from mpitrain.observe.progress import render_wall_time
from mpitrain.observe.step_times import StepTiming, describe_memory, describe_slowest, describe_timing

if TYPE_CHECKING:
    from mpitrain.observe.page.skill import ErrorSums

_MOST_TARGETS = 8
_OF_RANGES = "other times may have larger errors: mpitrain ensemble with ensemble.folds=10 tests them all"
_NOTABLE_LOSS_S = 1.0


@dataclass(frozen=True)
class TargetSkill:
    """Errors of one target in its units."""

    name: str
    """Name of the target."""
    units: str
    """Its units; "" if unknown."""
    bias: float
    """Mean of prediction - truth."""
    rmse: float
    """Root mean square error."""
    r2: float | None
    """1 - squared errors / squared deviations of the target from its mean; None for a constant target."""
    of_parts: tuple[float, ...] = ()
    """The finite root mean square errors of the folds, ranges or groups to which the samples belong."""

    @classmethod
    def of(cls, name: str, units: str, sums: ErrorSums, of_parts: Iterable[ErrorSums] = ()) -> TargetSkill:
        """Return the errors computed from sums.

        Parameters
        ----------
        name, units : str
            As for the fields of this name.
        sums : ErrorSums
            Sums over all samples.
        of_parts : iterable of ErrorSums
            Sums over each part. Default: no parts.
        """
        parts = tuple(one.rmse for one in of_parts if math.isfinite(one.rmse))
        return cls(name, units, sums.bias, sums.rmse, sums.r2, parts)

    @property
    def description(self) -> str:
        """One line with the name and all errors."""
        own = f" {self.units}" if self.units not in ("", "1") else ""
        r2 = "" if self.r2 is None else f", r2 {self.r2:.6g}"
        return f"{self.name}: RMSE {self.rmse:.6g}{own}, bias {self.bias:.6g}{own}{r2}"

    def spread(self, kind: str) -> str:
        """Return the range of the RMSE over the parts, as the end of a line.

        Parameters
        ----------
        kind : {"ranges", "groups", "folds"}
            Name of the parts in the text.

        Returns
        -------
        str
            Empty for fewer than two parts.
        """
        parts = self.of_parts
        return f"; RMSE {min(parts):.4g} to {max(parts):.4g} over the {kind}" if len(parts) > 1 else ""


@dataclass(frozen=True)
class TestSkill:
    """Skill of the exported weights on test samples, with the same loss function as in training."""

    of: str
    """Description of the samples."""
    num_samples: int
    """Number of test samples."""
    num_dropped: int
    """Number of samples of test files that were left out because a value is missing."""
    loss: float
    """Loss of the network; NaN if all samples have weight 0."""
    mean_predictor_loss: float
    """Loss of always predicting the mean of the training samples."""
    targets: tuple[TargetSkill, ...]
    """Errors of each target in its units."""
    parts: str = ""
    """Kind of the parts in `TargetSkill.of_parts`: `ranges`, `groups`, or empty."""


@dataclass(frozen=True)
class RunSummary:
    """Results of a run at its end. None means not known or not applicable, and is left out of the text.

    Losses are values of the loss function of the training. They have no unit if the outputs are normalised, and are
    those of the transformed targets if there are output transforms.
    """

    run_folder: Path | None = None
    """Folder that holds `report.html` and `config.yaml`."""
    model_file: Path | None = None
    """The exported model, in the run folder or at the path in the settings."""
    semantics: str | None = None
    """`standard` or `reference`."""
    world_size: int | None = None
    """Number of MPI ranks."""
    num_virtual_ranks: int | None = None
    """Number of virtual ranks; any number of ranks up to this gives the same weights."""
    num_training_samples: int | None = None
    """Samples used for training."""
    num_validation_samples: int | None = None
    """Samples held out for validation."""
    num_test_samples: int | None = None
    """Samples used neither for training nor for choosing the epoch, if a part of the data is kept for a test."""
    num_dropped_samples: int | None = None
    """Samples left out for fill values, NaN, or the truncation of `reference`."""
    num_unselected_points: int | None = None
    """Grid points or table rows, over all time levels, left out by the rule of `domain` or because their area is 0."""
    epochs: int | None = None
    """Epochs done."""
    steps: int | None = None
    """Optimiser steps done."""
    steps_before: int | None = None
    """Steps of `steps` that were done before this run was resumed."""
    wall_time_s: float | None = None
    """Seconds from the start of the run to the end of training."""
    train_loss: float | None = None
    """Training loss of the last epoch."""
    validation_loss: float | None = None
    """Validation loss of the exported weights if these are the best, otherwise of the last epoch."""
    mean_predictor_mse: float | None = None
    """Loss of always predicting the mean of the training samples, as a baseline."""
    baselines: Mapping[str, float] | None = None
    """Losses of other simple predictors on the same samples, by name."""
    noise_mse: float | None = None
    """Variance of the noise in the target, in the unit of the losses, if known (synthetic data): a lower bound."""
    weights_sha256: str | None = None
    """64 hexadecimal digits."""
    best_epoch: int | None = None
    """Epoch with the least validation loss, counted from 1; 0: the initial linear regression. None if the weights of
    the last epoch are exported."""
    stopped_early: bool | None = None
    """Whether early stopping or a steady Jacobian ended the training; more epochs would change nothing."""
    is_synthetic_data: bool | None = None
    """Whether the run used synthetic data, because `data.data_path` is not set."""
    is_handed_over: bool | None = None
    """Whether the data was passed as arrays from Python, and is not available after the run."""
    needs_trust: bool | None = None
    """Whether the run's settings name code that needs `--trust-code`."""
    timing: StepTiming | None = None
    """How the time of the steps was spent."""
    split: str | None = None
    """Description of the samples held out for validation."""
    no_better_targets: tuple[str, ...] | None = None
    """Targets for which the model is no better than predicting their mean, although it is better over all targets."""
    test: TestSkill | None = None
    """Skill on the files of `data.test_path`, or on the part of the data that is kept for a test."""
    skills: tuple[TargetSkill, ...] | None = None
    """Errors of each target in its units, over the samples described by `skill_samples`."""
    skill_samples: str | None = None
    """Description of these samples."""
    phases: tuple[tuple[str, float], ...] | None = None
    """Seconds of each phase of the run on the root, from the start of its process to the last line, by name."""
    profile_file: Path | None = None
    """The root's profile of ten early steps, if `training.profile_training` is set."""

    @property
    def test_loss(self) -> float | None:
        """The loss on the test samples; None without a test."""
        return None if self.test is None else self.test.loss


def render_summary(summary: RunSummary) -> str:
    """Return the summary as plain text without control characters, one line per item, ending in a newline.

    Lines fit in 100 columns, unless paths, names, units or descriptions of samples are long.
    """
    digits, profile = summary.weights_sha256, summary.profile_file
    rows = [
        *_under("Skill", _skill_lines(summary)),
        *_under("Test", _test_lines(summary)),
        ("Loss", _render_loss(summary)),
        ("", _render_comparison(summary)),
        *(("", line) for line in _baseline_lines(summary)),
        *_under("", _failure_lines(summary)),
        ("", "still improving: more training.epochs will probably lower it" if _is_improving(summary) else ""),
        ("Trained", _render_work(summary)),
        ("Samples", _render_samples(summary)),
        *_under("Time", _timing_lines(summary)),
        ("Weights", "" if digits is None else f"SHA-256 {digits[:12]} (all 64 digits in report.html)"),
        ("Model", "" if summary.model_file is None else str(summary.model_file)),
        ("Report", "" if summary.run_folder is None else str(summary.run_folder / "report.html")),
        ("Profile", "" if profile is None else f"{profile}   # open in ui.perfetto.dev"),
        *(("Next", text) for text in _next_steps(summary)),
    ]
    return "".join(f"{label:<9}{one_line(text)}\n" for label, text in rows if text)


def are_in_memory(files: Iterable[str]) -> bool:
    """Tell whether files are temporary files with arrays of a Python program, which are removed after the run."""
    return any(is_in_temporary_folder(Path(file)) for file in files)


def _under(label: str, lines: Sequence[str]) -> list[tuple[str, str]]:
    return [(label if number == 0 else "", text) for number, text in enumerate(lines)]


def _skill_lines(summary: RunSummary) -> list[str]:
    skills = summary.skills or ()
    lines = [one.description for one in skills[:_MOST_TARGETS]]
    num_more = len(skills) - _MOST_TARGETS
    if num_more > 0:
        lines.append(f"and {num_more} more target{'s' if num_more > 1 else ''}, in report.html")
    return [*lines, summary.skill_samples] if lines and summary.skill_samples else lines


def _render_work(summary: RunSummary) -> str:
    text = ", ".join(part for part in (_count(summary.epochs, "epoch"), _count(summary.steps, "step")) if part)
    if summary.steps_before and summary.steps == summary.steps_before:
        return f"no new steps: the {text} of this run were done before"
    if summary.steps_before and summary.steps is not None:
        text += f" in all, the last {summary.steps - summary.steps_before:,} now,"
    if summary.world_size is not None:
        text += f" on {_count(summary.world_size, 'rank')}"
    details = [summary.semantics, _count(summary.num_virtual_ranks, "microbatch", "es")]
    known = ", ".join(detail for detail in details if detail)
    return f"{text.strip()} ({known})" if known else text.strip()


def _render_samples(summary: RunSummary) -> str:
    counts = [
        (summary.num_training_samples, "for training"),
        (summary.num_validation_samples, "for validation"),
        (summary.num_test_samples, "for a test"),
        (summary.num_dropped_samples, "dropped"),
        (summary.num_unselected_points, "not selected"),
    ]
    return ", ".join(f"{count:,} {use}" for count, use in counts if count is not None)


def _timing_lines(summary: RunSummary) -> list[str]:
    lines, timing = [_render_phases(summary)], summary.timing
    if timing is not None:
        lines.append(f"{describe_timing(timing)}; at most {describe_memory(timing)}")
        # Seconds of the whole run for which the other ranks waited for the slowest one.
        lost_s = 0.0 if timing.slowest is None else timing.slowest.behind_s * timing.num_steps
        lines += [describe_slowest(timing)] if lost_s >= _NOTABLE_LOSS_S else []
    return [line for line in lines if line]


def _render_phases(summary: RunSummary) -> str:
    """Return the total time and its phases, which add up to it."""
    if not summary.phases:
        return "" if summary.wall_time_s is None else f"{render_wall_time(summary.wall_time_s)} in all"
    whole_s = sum(seconds for _, seconds in summary.phases)
    parts = ", ".join(f"{name} {render_wall_time(seconds)}" for name, seconds in summary.phases if seconds >= 0.05)
    return f"{render_wall_time(whole_s)} in all: {parts}" if parts else f"{render_wall_time(whole_s)} in all"


def _render_loss(summary: RunSummary) -> str:
    parts = []
    if summary.train_loss is not None:
        parts.append(f"train {summary.train_loss:.4e}")
    if summary.validation_loss is not None:
        parts.append(f"validation {summary.validation_loss:.4e}{_render_best(summary)}")
    return ", ".join(parts)


def _render_best(summary: RunSummary) -> str:
    if summary.best_epoch == 0:
        return " (best: the initial linear regression)"
    last = ", the last" if _is_improving(summary) else ""
    return f" (best: epoch {summary.best_epoch}{last})" if summary.best_epoch is not None else ""


_MEAN, _AS_GOOD = "always predicting the mean", 1.01


def _failure_lines(summary: RunSummary) -> list[str]:
    loss, simple = _shown_loss(summary), dict(summary.baselines or {})
    if summary.mean_predictor_mse is not None:
        simple[_MEAN] = summary.mean_predictor_mse
    best = min(simple, key=simple.__getitem__, default=None)
    if loss is None or best is None or loss < simple[best]:
        return _failed_target_lines(summary.no_better_targets)
    if best != _MEAN and loss < _AS_GOOD * simple[best]:
        return [f"As good as {best}: these inputs may not contain more information"]
    # No advice on smaller steps while the loss still falls.
    rate = "" if _is_improving(summary) else "a smaller training.optimizer.learning_rate, "
    return [
        f"NO BETTER than {best}. Try {rate}more training.epochs,",
        "more model.hidden_layers, other inputs; mpitrain data stats shows their ranges",
    ]


def _is_improving(summary: RunSummary) -> bool:
    return summary.best_epoch is not None and summary.best_epoch == summary.epochs


def _failed_target_lines(names: Sequence[str] | None) -> list[str]:
    if not names:
        return []
    return [
        f"NO BETTER than always predicting the mean for {', '.join(names)}. Try a larger weight in",
        "training.loss_weights, more epochs, other inputs, or targets that depend on these inputs",
    ]


def _test_lines(summary: RunSummary) -> list[str]:
    test = summary.test
    if test is None:
        return []
    dropped = f" ({test.num_dropped:,} dropped)" if test.num_dropped else ""
    ratio = f", {test.loss / test.mean_predictor_loss:.3g} of the mean predictor's {test.mean_predictor_loss:.4e}"
    compared = ratio if test.mean_predictor_loss else ""
    head = f"loss {test.loss:.4e}{compared}; {test.num_samples:,} samples{dropped} of {test.of}"
    advice = [_OF_RANGES] if test.parts == "ranges" else []
    return [head, *(f"{one.description}{one.spread(test.parts)}" for one in test.targets), *advice]


def _shown_loss(summary: RunSummary) -> float | None:
    return summary.train_loss if summary.validation_loss is None else summary.validation_loss


def _render_comparison(summary: RunSummary) -> str:
    loss = _shown_loss(summary)
    parts = []
    if loss is not None and summary.mean_predictor_mse:
        ratio = loss / summary.mean_predictor_mse
        parts.append(f"{ratio:.3g} of the mean predictor's {summary.mean_predictor_mse:.4e}")
    if loss is not None and summary.noise_mse:
        parts.append(f"{loss / summary.noise_mse:.3g} times the noise floor {summary.noise_mse:.4e}")
    return ", ".join(parts)


def _baseline_lines(summary: RunSummary) -> list[str]:
    loss = _shown_loss(summary)
    if loss is None or not summary.baselines:
        return []
    return [
        f"{loss / of_other:.3g} of {name}'s {of_other:.4e}" for name, of_other in summary.baselines.items() if of_other
    ]


def _next_steps(summary: RunSummary) -> list[str]:
    steps = []
    if summary.is_synthetic_data:
        steps.append("mpitrain train --data YOUR_FILE.nc --output YOUR_RUN   # this run used synthetic data")
    if summary.epochs is None or summary.stopped_early:
        return steps
    if summary.is_handed_over:
        steps.append(f"mpitrain.train(..., resume=True, epochs={2 * summary.epochs})   # continue training")
    elif summary.run_folder is not None:
        config = shlex.quote(str(summary.run_folder / "config.yaml"))
        trust = " --trust-code" if summary.needs_trust else ""
        steps.append(f"mpitrain train {config} --resume{trust} --epochs {2 * summary.epochs}   # continue training")
    return steps


def _count(number: int | None, thing: str, plural: str = "s") -> str:
    return "" if number is None else f"{number:,} {thing}{'' if number == 1 else plural}"
