"""The stages of a run as the recorder takes them, each of which a test of the harness may replace by a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from mpitrain.comm.ranks import Ranks
from mpitrain.data.dataset.dataset import DataSummary, LayoutOfSamples
from mpitrain.data.dataset.in_memory import InMemoryDataset
from mpitrain.data.dataset.reference import ReferenceDataset
from mpitrain.data.open_dataset import DataRequest, hold_samples
from mpitrain.data.samples import Samples
from mpitrain.data.selection.settings import Selection
from mpitrain.models.jacobian import scalar_jacobian
from mpitrain.runs.build import ModelRequest, build_model
from mpitrain.train.engines.contract import StepEngine

HeldDataset = InMemoryDataset | ReferenceDataset


@dataclass(frozen=True)
class Stages:
    """One function a stage, the package's own by default.

    `select` may change what is read, `adjust_engine` an engine that has been built; it may also give the engine another
    ranks.
    """

    select: Callable[[Selection], Selection] = lambda selection: selection
    hold_samples: Callable[[DataRequest, Samples, LayoutOfSamples, Ranks], HeldDataset] = hold_samples
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
