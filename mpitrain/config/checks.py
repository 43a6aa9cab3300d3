"""Checks that involve more than one setting; `RunConfig` runs all of them."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from mpitrain.config.component import Component, Room
from mpitrain.config.data import DataSection, VariablesSection
from mpitrain.config.section import Problem, Section
from mpitrain.config.training import DistributedSection, TrainingSection
from mpitrain.config.yaml import show_value


def cause_of_any_reduction(training: TrainingSection, distributed: DistributedSection) -> str | None:
    """Return `key=value` of the first setting that prevents a fixed order of summation, or None if there is none."""
    if distributed.strategy in ("dp", "ddp"):
        return f"distributed.strategy={distributed.strategy}"
    if training.engine in ("ddp", "cuda_graph"):
        return f"training.engine={training.engine}"
    return "distributed.fp16_allreduce=true" if distributed.fp16_allreduce else None


def training_problems(training: TrainingSection, distributed: DistributedSection) -> Iterator[Problem]:
    """Yield conflicts of the two batch sizes, and of the reduction or the engine with the strategy."""
    if training.batch_size is not None and training.global_batch_size is not None:
        advice = "keep one of them: batch_size is per rank, global_batch_size over all ranks"
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


def size_problems(model: Any, variables: VariablesSection) -> Iterator[Problem]:
    """Yield input and output sizes of the network that differ from the number of variables."""
    for name in ("input", "output"):
        size, names = getattr(model, f"{name}_size"), getattr(variables, f"{name}_variables")
        if names and size not in (None, len(names)):
            what = f"variables.{name}_variables has {len(names)} names; remove the key or give {len(names)}"
            yield Problem(f"model.{name}_size", size, what)


def fold_problems(data: DataSection) -> Iterator[Problem]:
    """Yield an invalid fold, conflicting choices of held-out samples, and settings of a split that lack another."""
    if data.folds is None and data.fold is not None:
        yield Problem("data.fold", data.fold, "there are no folds; give data.folds too, or remove the key")
    elif data.folds is not None and data.fold is not None and data.fold >= data.folds:
        yield Problem("data.fold", data.fold, f"folds are numbered from 0; give 0 to {data.folds - 1}")
    for key in ("folds", "validation_split"):
        if data.validation_path is not None and getattr(data, key) is not None:
            yield Problem(f"data.{key}", getattr(data, key), "not together with data.validation_path; keep one of them")
    if data.test_path is not None and data.data_path is None:
        what = "needs data.data_path: a run on synthetic data has no test files; give both"
        yield Problem("data.test_path", data.test_path, what)
    if data.split_blocks is not None and data.split not in ("time", "region"):
        yield Problem("data.split_blocks", data.split_blocks, "needs data.split=time or region")
    if data.split == "group" and data.group is None:
        yield Problem("data.split", "group", "needs data.group: the variable that identifies the groups, or file")
    if data.split != "group" and data.group is not None:
        yield Problem("data.group", data.group, "needs data.split=group; give data.group=null for another split")
    if data.folds is not None and data.validation_split is not None:
        yield Problem("data.validation_split", data.validation_split, "not together with data.folds; keep one of them")


def problems_of_test(data: DataSection, validation_split: float) -> Iterator[Problem]:
    """Yield conflicts of `data.test_split` with folds and validation files, and one that leaves no training samples."""
    for key in ("folds", "validation_path") if data.test_split else ():
        if getattr(data, key) is not None:
            yield Problem("data.test_split", data.test_split, f"not together with data.{key}: give data.test_split=0")
    if data.test_split and data.test_split + validation_split >= 1:
        what = f"with {validation_split:g} for validation no training samples are left; give a smaller fraction"
        yield Problem("data.test_split", data.test_split, what)


def reference_problems(config: Section) -> Iterator[Problem]:
    """Yield all settings that the C++ program does not support."""
    for key, value, allowed in _beyond_reference(config):
        yield Problem(key, value, _not_in_reference(" or ".join(show_value(one) for one in allowed)))
    backend = attrgetter("compute.backend")(config)
    if backend in ("gloo", "nccl"):
        what = "semantics reference needs MPI; give auto or mpi, or semantics: standard"
        yield Problem("compute.backend", backend, what, launch=True)


def sections_of(config: Section) -> Iterator[tuple[str, Section]]:
    """Yield the name and the value of each section of a configuration, without components."""
    for name in type(config).model_fields:
        section = getattr(config, name)
        if isinstance(section, Section) and not isinstance(section, Component):
            yield name, section


def component_reference_problems(room: Room, component: Component) -> Iterator[Problem]:
    """Yield a component, or options of it, that the C++ program does not support."""
    if component.in_reference is None:
        names = [name for name in room.table if room.component(name).in_reference is not None]
        yield Problem(room.type_key, component.name, _not_in_reference(" or ".join(names)))
        return
    usual = type(component).model_validate({room.name_field: component.name})
    for option in type(component).model_fields:
        value, default = getattr(component, option), getattr(usual, option)
        if option != room.name_field and option not in component.in_reference and value != default:
            yield Problem(f"{room.key}.{option}", value, _not_in_reference(show_value(default)))


def _not_in_reference(advice: str) -> str:
    return f"semantics reference has no such option; give {advice} or semantics: standard"


def _beyond_reference(config: Section) -> Iterator[tuple[str, Any, tuple[object, ...]]]:
    """Yield key, value and allowed values of each setting that the C++ program does not support."""
    for name, section in sections_of(config):
        for key, allowed in section.reference_values.items():
            value, default = getattr(section, key), type(section).model_fields[key].default
            if value is not None and value not in (allowed or (default,)):
                yield f"{name}.{key}", value, allowed or (default,)
