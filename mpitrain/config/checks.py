"""The checks that concern more than one setting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mpitrain.config.data import DataSection
from mpitrain.config.model import find_model_problems, model_name
from mpitrain.config.show import show_value
from mpitrain.config.training import TrainingSection

if TYPE_CHECKING:
    from mpitrain.config.run import RunConfig

CROSS_CHECK = "cross_check"


@dataclass(frozen=True)
class Problem:
    """Settings that do not go together: the one to name first, its value, why not, and what to do."""

    key: str
    value: object
    what: str
    launch: bool = False

    def __str__(self) -> str:
        return f"{self.key}={self.value}: {self.what}"


def find_problems(config: RunConfig) -> tuple[Problem, ...]:
    """Return every pair of settings that do not go together, in the order of the checks."""
    return tuple(problem for check in _CHECKS for problem in check(config))


def implies_any_reduction(config: RunConfig) -> str | None:
    """Return `key=value` of the first setting that cannot keep a fixed order of addition; None where all can."""
    if config.distributed.strategy in ("dp", "ddp"):
        return f"distributed.strategy={config.distributed.strategy}"
    if config.training.engine in ("ddp", "cuda_graph"):
        return f"training.engine={config.training.engine}"
    return "distributed.fp16_allreduce=true" if config.distributed.fp16_allreduce else None


def _one_batch_size(config: RunConfig) -> Iterator[Problem]:
    training = config.training
    if training.batch_size is not None and training.global_batch_size is not None:
        what = (
            "not together with training.global_batch_size; keep one: batch_size is per rank, the other over all ranks"
        )
        yield Problem("training.batch_size", training.batch_size, what)


def _reduction_is_possible(config: RunConfig) -> Iterator[Problem]:
    cause = implies_any_reduction(config)
    if config.training.reduction == "fixed" and cause is not None:
        what = f"not possible with {cause}; remove one of them"
        yield Problem("training.reduction", "fixed", what)


def _sizes_fit(config: RunConfig) -> Iterator[Problem]:
    model, variables = config.model, config.variables
    yield from _size_fits("model.input_size", model.input_size, variables.input_variables)
    yield from _size_fits("model.output_size", model.output_size, variables.output_variables)


def _size_fits(key: str, size: int | None, names: list[str] | None) -> Iterator[Problem]:
    if names and size not in (None, len(names)):
        listed = f"variables.{key.removeprefix('model.').removesuffix('_size')}_variables"
        yield Problem(key, size, f"{listed} names {len(names)}; remove the key or give {len(names)}")


def _network_is_possible(config: RunConfig) -> Iterator[Problem]:
    for key, value, what in find_model_problems(config.model):
        yield Problem(key, show_value(value), what)


def _engine_and_strategy_agree(config: RunConfig) -> Iterator[Problem]:
    engine, strategy = config.training.engine, config.distributed.strategy
    if strategy == "ddp" and engine not in ("auto", "ddp"):
        yield Problem("training.engine", engine, "not together with distributed.strategy=ddp; give auto or ddp")
    if strategy in ("single", "dp") and engine == "ddp":
        yield Problem(
            "training.engine", "ddp", f"not together with distributed.strategy={strategy}; remove one of them"
        )


def _reference_has_no_options(config: RunConfig) -> Iterator[Problem]:
    if config.semantics != "reference":
        return
    for key, value, allowed in _set_beyond_reference(config):
        yield Problem(key, value, f"semantics reference has no such option; give {allowed} or semantics: standard")


def _set_beyond_reference(config: RunConfig) -> Iterator[tuple[str, object, str]]:
    training = config.training
    if config.data.validation_split:
        yield "data.validation_split", config.data.validation_split, "0"
    if model_name(config.model) != "icenet":
        yield "model.name", model_name(config.model), "icenet"
    yield from _one_plain_file(config)
    yield from _full_batches(training)
    yield from _plain_training(training)


def _one_plain_file(config: RunConfig) -> Iterator[tuple[str, object, str]]:
    """Yield what the C++ program does not do when it reads its history file."""
    domain, data, variables, usual = config.domain, config.data, config.variables, DataSection()
    if domain.pole == "both":
        yield "domain.pole", "both", "north or south"
    for name in ("mask_mode", "mask", "latitude_range", "longitude_range"):
        if getattr(domain, name) is not None:
            yield f"domain.{name}", getattr(domain, name), "null"
    for name in ("samples", "streaming", "area_weighted", "max_patterns", "thin_fraction"):
        if getattr(data, name) != getattr(usual, name):
            yield f"data.{name}", show_value(getattr(data, name)), show_value(getattr(usual, name))
    for name in ("input_variables", "output_variables"):
        if getattr(variables, name) is not None:
            yield f"variables.{name}", show_value(getattr(variables, name)), "null"


def _full_batches(training: TrainingSection) -> Iterator[tuple[str, object, str]]:
    """Yield what changes the one full-batch step an epoch: key, value, and what to give instead."""
    if training.scheduler is not None and training.scheduler.type != "none":
        yield "training.scheduler.type", training.scheduler.type, "none"
    if training.shuffle:
        yield "training.shuffle", True, "false"
    if training.early_stopping_patience is not None:
        yield "training.early_stopping_patience", training.early_stopping_patience, "null"
    if training.jacobian_tolerance is not None:
        yield "training.jacobian_tolerance", training.jacobian_tolerance, "null"
    if training.batch_size not in (None, "full"):
        yield "training.batch_size", training.batch_size, "full"
    if training.global_batch_size not in (None, "full"):
        yield "training.global_batch_size", training.global_batch_size, "full"
    if training.reduction is not None:
        yield "training.reduction", training.reduction, "null"
    if training.engine not in ("auto", "eager"):
        yield "training.engine", training.engine, "auto"


def _plain_training(training: TrainingSection) -> Iterator[tuple[str, object, str]]:
    """Yield what neither the C++ program nor its equal here has: key, value, and the value that means "without"."""
    without: tuple[tuple[str, object, object], ...] = (
        ("training.optimizer.type", training.optimizer.type, "adam"),
        ("training.optimizer.weight_decay", training.optimizer.weight_decay, 0.0),
        ("training.loss_function", training.loss_function, "mse"),
        ("training.gradient_clip_norm", training.gradient_clip_norm, None),
        ("training.gradient_accumulation_steps", training.gradient_accumulation_steps, 1),
        ("training.learning_rate_scaling", training.learning_rate_scaling, "none"),
        ("training.use_amp", training.use_amp, False),
        ("training.torch_compile", training.torch_compile, False),
        ("training.gradient_checkpointing", training.gradient_checkpointing, False),
    )
    yield from ((key, value, show_value(plain)) for key, value, plain in without if value != plain)


def _reference_runs_on_mpi(config: RunConfig) -> Iterator[Problem]:
    if config.semantics == "reference" and config.compute.backend in ("gloo", "nccl"):
        what = "semantics reference needs MPI; give auto or mpi, or semantics: standard"
        yield Problem("compute.backend", config.compute.backend, what, launch=True)


_CHECKS: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (
    _one_batch_size,
    _reduction_is_possible,
    _sizes_fit,
    _network_is_possible,
    _engine_and_strategy_agree,
    _reference_has_no_options,
    _reference_runs_on_mpi,
)
