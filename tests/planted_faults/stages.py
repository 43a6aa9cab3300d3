"""The stages of a run as the recorder of `verify` takes them, and what puts others in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from mpitrain.comm.ranks import Ranks
from mpitrain.data.dataset import reference
from mpitrain.data.dataset.dataset import DataSummary, LayoutOfSamples
from mpitrain.data.dataset.in_memory import InMemoryDataset
from mpitrain.data.dataset.reference import ReferenceDataset
from mpitrain.data.open_dataset import DataRequest, hold_samples
from mpitrain.data.samples import Samples
from mpitrain.data.selection.settings import Selection, selection_of
from mpitrain.models.jacobian import scalar_jacobian
from mpitrain.runs import parts, prepare
from mpitrain.runs.build import ModelRequest, build_model
from mpitrain.runs.engine import build_engine
from mpitrain.train.engines.contract import StepEngine
from mpitrain.verify import traced_run

HeldDataset = InMemoryDataset | ReferenceDataset


@dataclass(frozen=True)
class Stages:
    """One function a stage, the package's own by default.

    `select` may change what is read, `session_of_engine` give the engine other ranks, and `adjust_engine` change an
    engine that has been built. `of_reference` are functions of `data.dataset.reference` by their names.
    """

    select: Callable[[Selection], Selection] = lambda selection: selection
    hold_samples: Callable[[DataRequest, Samples, LayoutOfSamples, Ranks], HeldDataset] = hold_samples
    of_reference: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    build_model: Callable[[ModelRequest, DataSummary, Ranks], nn.Module] = build_model
    session_of_engine: Callable[[Ranks], Ranks] = lambda ranks: ranks
    adjust_engine: Callable[[StepEngine], None] = lambda engine: None
    jacobian: Callable[[nn.Module, torch.Tensor], tuple[torch.Tensor, torch.Tensor]] = scalar_jacobian


@dataclass(frozen=True)
class Fault:
    """A mistake in `stages`, planted in runs of `semantics`; the first difference must be named at `stage`."""

    name: str
    stage: str
    stages: Stages
    semantics: str = "reference"


@contextmanager
def planted(stages: Stages) -> Iterator[None]:
    """Let the recorder take these stages."""

    def build(*arguments: Any) -> StepEngine:
        *others, ranks = arguments
        engine = build_engine(*others, stages.session_of_engine(ranks))
        stages.adjust_engine(engine)
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traced_run, "selection_of", lambda config: stages.select(selection_of(config)))
        patch.setattr(prepare, "hold_samples", stages.hold_samples)
        for name, step in stages.of_reference.items():
            patch.setattr(reference, name, step)
        patch.setattr(parts, "build_model", lambda *of_run: stages.build_model(*of_run[:3]))
        patch.setattr(prepare, "build_engine", build)
        patch.setattr(traced_run, "scalar_jacobian", stages.jacobian)
        yield
