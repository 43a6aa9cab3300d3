"""Step 7 of a run: the choice of network and engine, made together because both must use the same array type."""

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
from mpitrain.train.choose_engine import Kernels, Obstacle, choose_compiled, choose_torch_engine, set_switches
from mpitrain.train.engine_choice import EngineChoice


@dataclass
class Caches:
    """Objects that a run reuses from earlier runs of the same process on the same ranks.

    `answers`: the `checked_networks` of `open_microbatches`: keys of networks whose outputs are known to have the shape
    of the targets.
    """

    kernels: Kernels = field(default_factory=dict)
    models: Models = field(default_factory=dict)
    answers: set[str] = field(default_factory=set)


class RunParts(NamedTuple):
    """Network, samples and engine: a `DenseModel` on numpy arrays (compiled engine) or a torch module on tensors."""

    model: Any
    dataset: Dataset
    sources: Sequence[MicrobatchSource]
    choice: EngineChoice


@dataclass(frozen=True)
class PartsToChoose:
    """The inputs of the choice of network and engine, the same on all ranks."""

    config: RunConfig
    request: EngineRequest
    dataset: Dataset
    plan: BatchPlan
    virtual_ranks: VirtualRanks
    ranks: Ranks
    caches: Caches

    def choose(self) -> RunParts:
        """Return network, samples, their microbatches and engine. Collective. Loads torch only if it is needed.

        Raises ConfigError or MissingDependencyError on all ranks if the engine in the settings cannot be used.
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
        """Return the network with its initial weights and normalisation. Collective."""
        of_model, network = model_request(self.config), self.config.network
        if self.request.resumed_engine is not None:  # the checkpoint has the weights
            of_model = replace(of_model, network=network.model_copy(update={"initial_weights": None}))
        model = build_model(of_model, self.dataset.summary, self.ranks, self.caches.models, with_torch)
        if network.starts_from_regression:
            begin_at_regression(network, model, self.dataset, self.virtual_ranks, self.ranks)
        return model

    def _compiled(self, model: Any) -> RunParts | Obstacle:
        """Return the parts of a run with the compiled engine, or the obstacle to it. Collective."""
        # With "any" a rank computes all its microbatches as one: the whole batch is the upper limit of its rows.
        rows = self.plan.microbatch_rows * (self.plan.num_virtual_ranks if self.ranks.reduction == "any" else 1)
        found = self.ranks.on_all_ranks(
            lambda: choose_compiled(self.request, self.ranks, model, rows, self.caches.kernels)
        )
        if isinstance(found, Obstacle):
            return found
        sources, _ = self._microbatches(self.dataset, model)
        return RunParts(model, self.dataset, sources, found)

    def _torchs(self, module: Any, obstacle: Obstacle) -> RunParts:
        """Return the parts of a run with an engine that uses torch. Collective."""
        dataset = self.dataset.converted(functools.partial(to_tensor, device=self.ranks.device))
        sources, example = self._microbatches(dataset, module)
        weights = target_weights_of(self.request.training, dataset.summary.target_names)
        choice = self.ranks.on_all_ranks(
            lambda: choose_torch_engine(
                self.request, self.ranks, module, example, weights, obstacle, self.caches.kernels
            )
        )
        return RunParts(module, dataset, sources, choice)

    def _microbatches(self, dataset: Dataset, model: Any) -> tuple[Sequence[MicrobatchSource], Microbatch]:
        return open_microbatches(self.config, dataset, model, self.plan, self.ranks, self.caches.answers)
