"""Step 7 of a run: its network and what is to train it, chosen together, for they compute on one kind of array."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from mpitrain.comm import Ranks, VirtualRanks, to_tensor
from mpitrain.comm.tensors import begin_torch
from mpitrain.config import RunConfig
from mpitrain.data import BatchPlan, Dataset, Microbatch
from mpitrain.data.dataset.batches import MicrobatchSource
from mpitrain.runs.build import Models, build_model, model_request
from mpitrain.runs.engine import open_microbatches
from mpitrain.runs.model import begin_at_regression
from mpitrain.train import EngineRequest, target_weights_of
from mpitrain.train.choose_engine import Kernels, Obstacle, choose_compiled, choose_torchs, set_switches
from mpitrain.train.engine_choice import EngineChoice


@dataclass
class Caches:
    """What a run need not build again where its process, on the same ranks, trained others before it.

    `answers` are networks that are known to answer in the targets' shape.
    """

    kernels: Kernels = field(default_factory=dict)
    models: Models = field(default_factory=dict)
    answers: set[str] = field(default_factory=set)


class RunParts(NamedTuple):
    """What trains: the compiled engine a `DenseModel` on numpy's arrays, any other a module of torch's on tensors."""

    model: Any
    dataset: Dataset
    sources: Sequence[MicrobatchSource]
    choice: EngineChoice


@dataclass(frozen=True)
class PartsToChoose:
    """What the choice depends on, the same on all ranks."""

    config: RunConfig
    request: EngineRequest
    dataset: Dataset
    plan: BatchPlan
    virtual_ranks: VirtualRanks
    ranks: Ranks
    caches: Caches

    def choose(self) -> RunParts:
        """Return network, samples, their microbatches and engine. Collective. Loads torch where it is needed.

        Raises ConfigError or MissingDependencyError, on all ranks, where the engine that is asked for cannot serve.
        """
        obstacle: Obstacle | None = None
        if self.request.may_need_no_torch(self.config.network):
            found = self._compiled(self._build(with_torch=False))
            if isinstance(found, RunParts):
                return found
            obstacle = found
        begin_torch(self.ranks, self.request.distributed.timeout_s)
        set_switches(self.request.training)
        from mpitrain.models import dense_of

        module = self._build(with_torch=True)
        if obstacle is None:
            found = self._compiled(dense_of(module) or module)
            if isinstance(found, RunParts):
                return found
            obstacle = found
        return self._torchs(module, obstacle)

    def _build(self, with_torch: bool) -> Any:
        """Return the network with its first weights and normalisation. Collective."""
        of_model, network = model_request(self.config), self.config.network
        if self.request.resumed_engine is not None:  # the checkpoint has the weights
            of_model = replace(of_model, network=network.model_copy(update={"initial_weights": None}))
        model = build_model(of_model, self.dataset.summary, self.ranks, self.caches.models, with_torch)
        if network.begins_at_regression:
            begin_at_regression(network, model, self.dataset, self.virtual_ranks, self.ranks)
        return model

    def _compiled(self, model: Any) -> RunParts | Obstacle:
        """Return a run by the compiled engine, or what is in its way. Collective."""
        # With "any" a rank's microbatches are one: the whole batch bounds its rows, whatever the number of ranks.
        rows = self.plan.microbatch_rows * (self.plan.num_virtual_ranks if self.ranks.reduction == "any" else 1)
        found = self.ranks.on_all_ranks(
            lambda: choose_compiled(self.request, self.ranks, model, rows, self.caches.kernels)
        )
        if isinstance(found, Obstacle):
            return found
        sources, _ = self._microbatches(self.dataset, model)
        return RunParts(model, self.dataset, sources, found)

    def _torchs(self, module: Any, obstacle: Obstacle) -> RunParts:
        """Return a run by an engine that computes with torch. Collective."""
        dataset = self.dataset.converted(functools.partial(to_tensor, device=self.ranks.device))
        sources, example = self._microbatches(dataset, module)
        weights = target_weights_of(self.request.training, dataset.summary.target_names)
        choice = self.ranks.on_all_ranks(
            lambda: choose_torchs(self.request, self.ranks, module, example, weights, obstacle, self.caches.kernels)
        )
        return RunParts(module, dataset, sources, choice)

    def _microbatches(self, dataset: Dataset, model: Any) -> tuple[Sequence[MicrobatchSource], Microbatch]:
        return open_microbatches(self.config, dataset, model, self.plan, self.ranks, self.caches.answers)
