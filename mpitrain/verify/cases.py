"""The cases of `mpitrain verify`: a run, an engine of the C++ program, and the claim on how closely they agree."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mpitrain.config import TrainingSection, load_run_config
from mpitrain.errors import ConfigError, UserError

TRACE_STEPS = (1, 10, 100, 1000)


@dataclass(frozen=True)
class Run:
    """One training that both programs perform; `settings` are dotted overrides of a configuration."""

    name: str
    precision: str
    settings: tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """A run, the C++ engine that performs it, and the claim on how closely the two traces agree."""

    run: Run
    engine: str
    claim: str

    @property
    def name(self) -> str:
        """Name in tables and reports."""
        return f"{self.run.name}/{self.engine}"


def _reference(name: str, *settings: str, precision: str = "float32") -> Run:
    return Run(name, precision, ("semantics=reference", f"training.dtype={precision}", *settings))


def _standard(name: str, *settings: str, precision: str = "float32") -> Run:
    common = ("semantics=standard", f"training.dtype={precision}", "training.virtual_ranks=8")
    return Run(name, precision, (*common, *settings))


_SOUTH = ("domain.pole=south", "training.epochs=100", "model.hidden_size=2")
_SIGMOID = ("training.epochs=100", "model.hidden_activation=sigmoid", "model.hidden_size=64")
_BATCH_64 = ("training.epochs=60", "training.global_batch_size=64")
_FULL_BATCH = ("training.epochs=200", "training.global_batch_size=full")
# The number of microbatches follows from the batch; the other cases have 8, as all runs of earlier versions had.
_BATCH_900 = ("training.epochs=10", "training.global_batch_size=900", "training.virtual_ranks=null")
_ALL_DATA = ("domain.pole=south", "domain.clean_data=false", "training.epochs=4", "training.global_batch_size=100")

_RUNS = {
    run.name: run
    for run in (
        _reference("reference", "training.epochs=1000"),
        _reference("reference float64", "training.epochs=1000", precision="float64"),
        _reference("reference south", *_SOUTH),
        _reference("reference, sigmoid between", *_SIGMOID),
        _standard("standard, batch 64", *_BATCH_64),
        _standard("standard, batch 64 float64", *_BATCH_64, precision="float64"),
        _standard("standard, batch 900 in 64 microbatches", *_BATCH_900),
        _standard("standard, full batch", *_FULL_BATCH),
        _standard("standard south, all data, gelu", *_ALL_DATA, "model.hidden_activation=gelu"),
    )
}


def all_cases() -> list[Case]:
    """Return the table of cases: all runs exact against the torch engine, some close against the plain one."""
    exact = [Case(run, "torch", "exact") for run in _RUNS.values()]
    double = [Case(run, "plain", "close float64") for run in _RUNS.values() if run.precision == "float64"]
    single = [
        Case(_RUNS[name], "plain", "close float32")
        for name in ("reference", "standard, batch 64", "standard, full batch")
    ]
    return [*exact, *double, *single]


def named_cases(names: Sequence[str], overrides: Sequence[str]) -> list[Case]:
    """Return the cases of the table with a name, or a run's name, in `names`; `overrides` are added to their settings.

    Raises UserError for an unknown name, ConfigError for settings that are wrong or that the C++ program does not have.
    """
    table = all_cases()
    for name in names:
        if not any(name in (case.name, case.run.name) for case in table):
            raise UserError(f"--case {name!r}: no such case; there are {', '.join(repr(case.name) for case in table)}")
    chosen = [case for case in table if case.name in names or case.run.name in names]
    changed = [replace(case, run=replace(case.run, settings=(*case.run.settings, *overrides))) for case in chosen]
    for case in changed:
        _check_the_cpp_program_has(load_run_config(None, case.run.settings).config.training)
    return changed


def cases_of_user(training: TrainingSection, overrides: Sequence[str]) -> list[Case]:
    """Return the cases of a user's own run: exact against libtorch, close against the plain engine.

    Raises ConfigError for settings that the C++ program does not have.
    """
    _check_the_cpp_program_has(training)
    run = Run("your run", training.dtype, tuple(overrides))
    return [Case(run, "torch", "exact"), Case(run, "plain", f"close {training.dtype}")]


def _check_the_cpp_program_has(training: TrainingSection) -> None:
    unknown = {
        "training.scheduler": training.scheduler is not None and training.scheduler.in_reference is None,
        "training.optimizer.type": training.optimizer.in_reference is None,
        "training.optimizer.weight_decay": bool(getattr(training.optimizer, "weight_decay", 0)),
        "training.loss_function": training.loss_function.in_reference is None,
        "training.gradient_clip_norm": training.gradient_clip_norm is not None,
        "training.gradient_accumulation_steps": training.gradient_accumulation_steps != 1,
        "training.learning_rate_scaling": training.learning_rate_scaling != "none",
        "training.early_stopping_patience": training.early_stopping_patience is not None,
        "training.max_steps": training.max_steps is not None,
        "training.average": training.average is not None,
        "training.reduction=any": training.reduction == "any",
    }
    missing = [key for key, is_used in unknown.items() if is_used]
    if missing:
        raise ConfigError(f"the C++ program has no {', '.join(missing)}; verify with key=null (or 0) for each")


def weights_for_cpp(given: str | None) -> str | None:
    """Return the file `model.initial_weights` if the C++ program can read it: NetCDF, not a model.pt.

    Otherwise None: Python writes its initial weights as NetCDF. The content of the file decides, as in training.
    """
    return None if given is None or zipfile.is_zipfile(given) else given
