"""The checks that concern more than one setting; `RunConfig` makes them all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from mpitrain.config.data import DataSection, VariablesSection
from mpitrain.config.model import ModelSection, find_model_problems
from mpitrain.config.section import Section
from mpitrain.config.training import DistributedSection, TrainingSection
from mpitrain.config.yaml import show_value

CROSS_CHECK = "cross_check"
"""Type of the error that carries the problems found here, in pydantic's words."""


@dataclass(frozen=True)
class Problem:
    """Settings that do not go together: the one to name first, its value, why not, and what to do."""

    key: str
    value: object
    what: str
    launch: bool = False
    """Whether it is the launch that must change."""

    def __str__(self) -> str:
        return f"{self.key}={show_value(self.value)}: {self.what}"


def cause_of_any_reduction(training: TrainingSection, distributed: DistributedSection) -> str | None:
    """Return `key=value` of the first setting that cannot keep a fixed order of addition; None where all can."""
    if distributed.strategy in ("dp", "ddp"):
        return f"distributed.strategy={distributed.strategy}"
    if training.engine in ("ddp", "cuda_graph"):
        return f"training.engine={training.engine}"
    return "distributed.fp16_allreduce=true" if distributed.fp16_allreduce else None


def training_problems(training: TrainingSection, distributed: DistributedSection) -> Iterator[Problem]:
    """Yield two batch sizes, and an order of addition or an engine that the strategy cannot have."""
    if training.batch_size is not None and training.global_batch_size is not None:
        advice = "keep one: batch_size is per rank, the other over all ranks"
        what = f"not together with training.global_batch_size; {advice}"
        yield Problem("training.batch_size", training.batch_size, what)
    cause = cause_of_any_reduction(training, distributed)
    if training.reduction == "fixed" and cause is not None:
        yield Problem("training.reduction", "fixed", f"not possible with {cause}; remove one of them")
    engine, strategy = training.engine, distributed.strategy
    with_strategy = f"not together with distributed.strategy={strategy}"
    if strategy == "ddp" and engine not in ("auto", "ddp"):
        yield Problem("training.engine", engine, f"{with_strategy}; give auto or ddp")
    if strategy in ("single", "dp") and engine == "ddp":
        yield Problem("training.engine", engine, f"{with_strategy}; remove one of them")


def network_problems(model: ModelSection, variables: VariablesSection) -> Iterator[Problem]:
    """Yield sizes of the network that are not the number of variables, and options that it does not have."""
    for name in ("input", "output"):
        size, names = getattr(model, f"{name}_size"), getattr(variables, f"{name}_variables")
        if names and size not in (None, len(names)):
            what = f"variables.{name}_variables names {len(names)}; remove the key or give {len(names)}"
            yield Problem(f"model.{name}_size", size, what)
    yield from (Problem(*found) for found in find_model_problems(model))


def fold_problems(data: DataSection) -> Iterator[Problem]:
    """Yield a fold that is none, and a second way to say what is held out."""
    if data.folds is None and data.fold is not None:
        yield Problem("data.fold", data.fold, "there are no folds; give data.folds too, or remove the key")
    elif data.folds is not None and data.fold is not None and data.fold >= data.folds:
        yield Problem("data.fold", data.fold, f"folds count from 0; give 0 to {data.folds - 1}")
    for key in ("folds", "validation_split"):
        if data.validation_path is not None and getattr(data, key) is not None:
            yield Problem(f"data.{key}", getattr(data, key), "not together with data.validation_path; keep one of them")
    if data.test_path is not None and data.data_path is None:
        what = "there is no data.data_path: what trains on synthetic data has no test files; name both"
        yield Problem("data.test_path", data.test_path, what)
    if data.split_blocks is not None and data.split == "random":
        yield Problem("data.split_blocks", data.split_blocks, "needs data.split=time or region")
    if data.folds is not None and data.validation_split is not None:
        yield Problem("data.validation_split", data.validation_split, "not together with data.folds; keep one of them")


def reference_problems(config: Section) -> Iterator[Problem]:
    """Yield every setting of a run that the C++ program does not have."""
    for key, value, allowed in _beyond_reference(config):
        advice = " or ".join(show_value(one) for one in allowed)
        yield Problem(key, value, f"semantics reference has no such option; give {advice} or semantics: standard")
    backend = attrgetter("compute.backend")(config)
    if backend in ("gloo", "nccl"):
        what = "semantics reference needs MPI; give auto or mpi, or semantics: standard"
        yield Problem("compute.backend", backend, what, launch=True)


def _beyond_reference(config: Section) -> Iterator[tuple[str, Any, tuple[object, ...]]]:
    """Yield key, value, and the values that may be given instead."""
    for key, allowed in _REFERENCE_TAKES.items():
        section = attrgetter(key.rpartition(".")[0])(config)
        value = section and getattr(section, key.rpartition(".")[2])
        if value is not None and value not in allowed:
            yield key, value, allowed
    for name, keys in _REFERENCE_LACKS.items():
        section = attrgetter(name)(config)
        usual = type(section)()
        for key in keys:
            if getattr(section, key) != getattr(usual, key):
                yield f"{name}.{key}", getattr(section, key), (getattr(usual, key),)


# What a key may be in `reference`, where it is not null.
_REFERENCE_TAKES: dict[str, tuple[object, ...]] = {
    "data.validation_split": (0,),
    "model.name": ("icenet",),
    "domain.pole": ("north", "south"),
    "training.scheduler.type": ("none",),
    "training.shuffle": (False,),
    "training.batch_size": ("full",),
    "training.global_batch_size": ("full",),
    "training.engine": ("auto", "eager"),
}
# The keys of each section that must stay at their defaults in `reference`.
_REFERENCE_LACKS = {
    "model": ("hidden_layers", "output_transforms"),
    "domain": ("mask_mode", "mask", "latitude_range", "longitude_range"),
    "data": (
        "samples",
        "streaming",
        "area_weighted",
        "area_variable",
        "max_patterns",
        "thin_fraction",
        "folds",
        "split",
        "validation_path",
        "test_path",
    ),
    "variables": ("input_variables", "output_variables"),
    "training": (
        "early_stopping_patience",
        "jacobian_tolerance",
        "reduction",
        "loss_function",
        "loss_weights",
        "area_weighted_loss",
        "gradient_clip_norm",
        "gradient_accumulation_steps",
        "learning_rate_scaling",
        "use_amp",
        "torch_compile",
        "gradient_checkpointing",
    ),
    "training.optimizer": ("type", "weight_decay"),
}
