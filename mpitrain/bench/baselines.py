"""Training loops in plain PyTorch, for comparison: DataLoader with DistributedDataParallel, and one process.

N  samples      F  input features      O  targets      b  samples of this rank in a batch
"""

from __future__ import annotations

import itertools
import os
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from mpitrain.bench.step_cases import FEATURES, OUTPUTS, Network
from mpitrain.comm import Ranks
from mpitrain.config import load_run_config
from mpitrain.data import Samples
from mpitrain.errors import MissingDependencyError, UserError

_ACTIVATIONS = {"none": nn.Identity, "sigmoid": nn.Sigmoid, "relu": nn.ReLU}
_LEARNING_RATE = 1e-3
_STEPS_TO_TRY = 20
_Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


class DistributedLoop:
    """DistributedDataParallel on this rank's part of each batch, over the process group of `ranks` (gloo on CPUs)."""

    def __init__(self, ranks: Ranks, network: Network, samples: Samples, global_batch_size: int | str) -> None:
        """Build model, optimiser and loader. Collective.

        Raises UserError if the batch size is not divisible by the number of ranks.
        """
        torch.manual_seed(0)
        self._model = DistributedDataParallel(model_of(network))
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=_LEARNING_RATE)
        self._batches = _endless(ranks, samples, _rank_batch_size(ranks, samples, global_batch_size))

    def time_steps(self, num_steps: int) -> list[float]:
        """Train `num_steps` steps and return the time of each in microseconds, including loading its batch.

        Collective.
        """
        return _time_steps(self._model, self._optimizer, self._batches, num_steps)


class SingleLoop:
    """Loop on the root only: the whole batch in one pass, from tensors in memory, with the faster of torch's Adams."""

    def __init__(self, ranks: Ranks, network: Network, samples: Samples, global_batch_size: int | str) -> None:
        """Build the model; time torch's Adam with and without its fused kernel and keep the faster one."""
        torch.manual_seed(0)
        self._batches = _drawn_batches(samples, _num_rows(samples, global_batch_size))
        tried = [self._try(network, is_fused) for is_fused in (False, True)] if ranks.is_root else []
        self._chosen = min(tried, key=lambda one: one[0])[1:] if tried else None

    def _try(self, network: Network, is_fused: bool) -> tuple[float, nn.Module, torch.optim.Adam]:
        model = model_of(network)
        optimizer = torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE, fused=is_fused)
        _time_steps(model, optimizer, self._batches, _STEPS_TO_TRY)  # warm-up
        return float(np.median(_time_steps(model, optimizer, self._batches, _STEPS_TO_TRY))), model, optimizer

    def time_steps(self, num_steps: int) -> list[float]:
        """See `DistributedLoop.time_steps`; ranks other than the root return zeros."""
        if self._chosen is None:
            return [0.0] * num_steps
        return _time_steps(*self._chosen, self._batches, num_steps)


class CompiledLoop:
    """`SingleLoop` with the model compiled by torch.compile, Adam(fused=True), and as many threads as NPROC says."""

    def __init__(self, ranks: Ranks, network: Network, samples: Samples, global_batch_size: int | str) -> None:
        """Compile the model. Raises MissingDependencyError if torch cannot."""
        del ranks
        torch.manual_seed(0)
        torch.set_num_threads(int(os.environ.get("NPROC", "1")))
        self._batches = _drawn_batches(samples, _num_rows(samples, global_batch_size))
        model = model_of(network)
        self._optimizer = torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE, fused=True)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # those of torch's compiler about itself
                self._model: Any = torch.compile(model)
                self.time_steps(1)
        except Exception as error:  # torch's compiler raises what it likes
            raise MissingDependencyError(f"torch.compile: {type(error).__name__}: {error}") from error

    def time_steps(self, num_steps: int) -> list[float]:
        """See `DistributedLoop.time_steps`."""
        return _time_steps(self._model, self._optimizer, self._batches, num_steps)


def _time_steps(model: nn.Module, optimizer: torch.optim.Adam, batches: _Batches, num_steps: int) -> list[float]:
    ends_s = [time.perf_counter()]
    for inputs, targets in itertools.islice(batches, num_steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        ends_s.append(time.perf_counter())
    return [float(step_s) * 1e6 for step_s in np.diff(ends_s)]


def _drawn_batches(samples: Samples, batch_size: int) -> _Batches:
    """Yield batches (b, F, ...), (b, O, ...), epoch after epoch, in a new random order for each epoch."""
    inputs, targets = torch.from_numpy(samples.inputs), torch.from_numpy(samples.targets)
    while True:
        order = torch.randperm(len(samples))
        for first in range(0, len(samples) - batch_size + 1, batch_size):
            rows = order[first : first + batch_size]
            yield inputs[rows], targets[rows]


def _num_rows(samples: Samples, global_batch_size: int | str) -> int:
    return len(samples) if global_batch_size == "full" else int(global_batch_size)


def _rank_batch_size(ranks: Ranks, samples: Samples, global_batch_size: int | str) -> int:
    rows = _num_rows(samples, global_batch_size)
    world_size = ranks.world_size
    if rows % world_size:
        raise UserError(f"batch {rows}: not divisible by {world_size} ranks; give a multiple of the number of ranks")
    return rows // world_size


def model_of(network: Network) -> nn.Module:
    """Return the network without a normalisation layer: users of plain PyTorch normalise their data beforehand."""
    if not network.is_chain:
        settings = load_run_config(None, list(network.settings)).config.network
        plain: nn.Module = settings.build(FEATURES, OUTPUTS).network
        return plain
    pairs = list(itertools.pairwise(network.sizes))
    activations = [network.hidden_activation] * (len(pairs) - 1) + [network.output_activation]
    layers: list[nn.Module] = []
    for (inputs, outputs), activation in zip(pairs, activations, strict=True):
        layers.append(nn.Linear(inputs, outputs))
        if activation != "none":
            layers.append(_ACTIVATIONS[activation]())
    return nn.Sequential(*layers)


def _endless(ranks: Ranks, samples: Samples, batch_size: int) -> _Batches:
    """Yield batches (b, F, ...), (b, O, ...) of a DataLoader, epoch after epoch, in a new order for each epoch."""
    dataset = TensorDataset(torch.from_numpy(samples.inputs), torch.from_numpy(samples.targets))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] | None = None
    if ranks.world_size > 1:
        sampler = DistributedSampler(dataset, ranks.world_size, ranks.rank)
    loader = DataLoader(dataset, batch_size, shuffle=sampler is None, sampler=sampler, drop_last=True)
    for epoch in itertools.count():
        if sampler is not None:
            sampler.set_epoch(epoch)
        yield from loader
