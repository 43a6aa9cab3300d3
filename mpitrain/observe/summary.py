"""The few lines at the end of a run: how good, what it is called by its bits, where it lies, what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mpitrain.observe.progress import render_wall_time
from mpitrain.observe.step_times import StepTiming, describe_memory, describe_slowest, describe_timing


@dataclass(frozen=True)
class TargetSkill:
    """Errors of one target in its units: mean of prediction - truth, root of the mean square, share of variance."""

    name: str
    units: str
    bias: float
    rmse: float
    r2: float | None

    @property
    def words(self) -> str:
        """One line of all of it."""
        own = f" {self.units}" if self.units not in ("", "1") else ""
        r2 = "" if self.r2 is None else f", r2 {self.r2:.6g}"
        return f"{self.name}: RMSE {self.rmse:.6g}{own}, bias {self.bias:.6g}{own}{r2}"


@dataclass(frozen=True)
class TestSkill:
    """How good the exported weights are on `files` that no training has seen; losses are measured as the others are."""

    files: tuple[str, ...]
    num_samples: int
    num_dropped: int
    loss: float
    mean_predictor_loss: float
    targets: tuple[TargetSkill, ...]


@dataclass(frozen=True)
class RunSummary:
    """What is known of a run when it ends; None is "not known" or "does not apply", and is left out of the text.

    Losses are mean squared errors in the unit of the target, squared.
    """

    run_folder: Path | None = None
    """Folder that holds `report.html` and `config.yaml`."""
    model_file: Path | None = None
    """The exported model, in the run folder or where the settings put it."""
    semantics: str | None = None
    """`standard` or `reference`."""
    world_size: int | None = None
    """Number of MPI ranks."""
    num_virtual_ranks: int | None = None
    """Number of virtual ranks; the same weights come out for any number of ranks up to it."""
    num_training_samples: int | None = None
    num_validation_samples: int | None = None
    num_dropped_samples: int | None = None
    """Samples left out for fill values, NaN, or the truncation of `reference`."""
    epochs: int | None = None
    """Epochs done."""
    steps: int | None = None
    """Optimiser steps done."""
    steps_before: int | None = None
    """Steps of `steps` that were done before this run was resumed."""
    wall_time_s: float | None = None
    train_loss: float | None = None
    validation_loss: float | None = None
    mean_predictor_mse: float | None = None
    """Loss of always answering the training samples' mean: what any network must beat."""
    noise_mse: float | None = None
    """Variance of the noise in the target, where known (synthetic data): what no network can beat."""
    weights_sha256: str | None = None
    """64 hexadecimal digits."""
    best_epoch: int | None = None
    """Epoch with the least validation loss, counted from 1."""
    is_synthetic_data: bool | None = None
    timing: StepTiming | None = None
    """Where the time of the steps went."""
    split: str | None = None
    """What is held out for validation, in words."""
    no_better_targets: tuple[str, ...] | None = None
    """Targets of several for which always answering the mean is as good, though it is not for all together."""
    test: TestSkill | None = None
    """What was reached on the files of `data.test_path`."""
    profile_file: Path | None = None
    """The root's profile of ten early steps, where `training.profile_training` asked for it."""

    @property
    def test_loss(self) -> float | None:
        """The loss on the test files."""
        return None if self.test is None else self.test.loss


def render_summary(summary: RunSummary) -> str:
    """Plain text of at most 100 columns (but for long paths), without control characters, ending in a newline."""
    rows = [
        ("Trained", _render_work(summary)),
        ("Samples", _render_samples(summary)),
        *(("Time" if number == 0 else "", text) for number, text in enumerate(_timing_lines(summary))),
        ("Loss", _render_loss(summary)),
        ("", _render_comparison(summary)),
        ("", _render_failure(summary)),
        *(("Test" if number == 0 else "", text) for number, text in enumerate(_test_lines(summary))),
        ("Weights", _render_weights(summary)),
        ("Model", "" if summary.model_file is None else str(summary.model_file)),
        ("Report", _render_report(summary)),
        ("Profile", _render_profile(summary)),
        *(("Next", text) for text in _next_steps(summary)),
    ]
    return "".join(f"{label:<9}{text}\n" for label, text in rows if text)


def _render_work(summary: RunSummary) -> str:
    if summary.steps_before and summary.steps == summary.steps_before:
        done = ", ".join(part for part in (_count(summary.epochs, "epoch"), _count(summary.steps, "step")) if part)
        return f"nothing more: the {done} of this run were done before"
    parts = [_count(summary.epochs, "epoch"), _count(summary.steps, "step")]
    text = ", ".join(part for part in parts if part)
    if summary.steps_before and summary.steps is not None:
        text += f" in all, the last {summary.steps - summary.steps_before:,} now,"
    if summary.wall_time_s is not None:
        text += f" in {render_wall_time(summary.wall_time_s)}"
    if summary.world_size is not None:
        text += f" on {_count(summary.world_size, 'rank')}"
    details = [summary.semantics, _count(summary.num_virtual_ranks, "virtual rank")]
    known = ", ".join(detail for detail in details if detail)
    return f"{text.strip()} ({known})" if known else text.strip()


def _render_samples(summary: RunSummary) -> str:
    counts = [
        (summary.num_training_samples, "for training"),
        (summary.num_validation_samples, "for validation"),
        (summary.num_dropped_samples, "dropped"),
    ]
    return ", ".join(f"{count:,} {use}" for count, use in counts if count is not None)


def _timing_lines(summary: RunSummary) -> list[str]:
    if summary.timing is None:
        return []
    memory = f"; at most {describe_memory(summary.timing)}"
    return [f"{describe_timing(summary.timing)}{memory}", describe_slowest(summary.timing)]


def _render_loss(summary: RunSummary) -> str:
    parts = []
    if summary.train_loss is not None:
        parts.append(f"train {summary.train_loss:.4e}")
    if summary.validation_loss is not None:
        best = f" (best: epoch {summary.best_epoch})" if summary.best_epoch is not None else ""
        parts.append(f"validation {summary.validation_loss:.4e}{best}")
    return ", ".join(parts)


def _render_failure(summary: RunSummary) -> str:
    loss = _shown_loss(summary)
    if loss is None or summary.mean_predictor_mse is None or loss < summary.mean_predictor_mse:
        return _render_failed_targets(summary.no_better_targets)
    return (
        "NO BETTER than always answering the mean. Try a smaller training.optimizer.learning_rate, more\n"
        f"{'':<9}training.epochs, another model.name (mlp), other inputs; mpitrain data stats shows their ranges"
    )


def _render_failed_targets(names: Sequence[str] | None) -> str:
    if not names:
        return ""
    return (
        f"NO BETTER than always answering the mean for {', '.join(names)}. Try a larger weight in\n"
        f"{'':<9}training.loss_weights, more training.epochs, other inputs, or targets that these inputs tell of"
    )


def _test_lines(summary: RunSummary) -> list[str]:
    test = summary.test
    if test is None:
        return []
    files = test.files[0] if len(test.files) == 1 else f"{test.files[0]} and {len(test.files) - 1} more"
    dropped = f" ({test.num_dropped:,} dropped)" if test.num_dropped else ""
    ratio = f", {test.loss / test.mean_predictor_loss:.3g} of the mean predictor's {test.mean_predictor_loss:.4e}"
    compared = ratio if test.mean_predictor_loss else ""
    head = f"loss {test.loss:.4e}{compared}; {test.num_samples:,} samples{dropped} of {files}"
    return [head, *(one.words for one in test.targets)]


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


def _render_weights(summary: RunSummary) -> str:
    if summary.weights_sha256 is None:
        return ""
    return f"SHA-256 {summary.weights_sha256[:12]} (all 64 digits in report.html)"


def _render_report(summary: RunSummary) -> str:
    return "" if summary.run_folder is None else str(summary.run_folder / "report.html")


def _render_profile(summary: RunSummary) -> str:
    return "" if summary.profile_file is None else f"{summary.profile_file}   # open in ui.perfetto.dev"


def _next_steps(summary: RunSummary) -> list[str]:
    steps = []
    if summary.is_synthetic_data:
        steps.append("mpitrain train --data YOUR_FILE.nc --output YOUR_RUN   # this run's data was made up")
    if summary.run_folder is not None and summary.epochs is not None:
        config = shlex.quote(str(summary.run_folder / "config.yaml"))
        steps.append(f"mpitrain train {config} --resume --epochs {2 * summary.epochs}   # go on from here")
    return steps


def _count(number: int | None, thing: str) -> str:
    return "" if number is None else f"{number:,} {thing}{'' if number == 1 else 's'}"
