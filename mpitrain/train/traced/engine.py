"""The engine for networks of any kind on CPUs: recorded gradients of many microbatches in one call, without autograd.

Each call computes a tile of k microbatches; microbatch v is at place v mod k of its tile, for any number of ranks, so
that the bits do not depend on it. A rank that owns only some microbatches of a tile leaves the other places empty.

V  virtual ranks      k  microbatches of a tile      b  rows of one      n  parameters in all
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from mpitrain.data import Microbatch
from mpitrain.train.engines.contract import StepResult
from mpitrain.train.engines.eager import clip
from mpitrain.train.engines.standard import EXTRA_ENTRIES, EngineInputs
from mpitrain.train.engines.torch_engine import TorchEngine
from mpitrain.train.engines.weights_digest import CrcOfWeights
from mpitrain.train.random_streams import kept_random_state, seed_stream
from mpitrain.train.traced.flat_optimizer import FlatOptimizer
from mpitrain.train.traced.gradient import TracedGradient, data_of, random_microbatches

# Weights times points; computing a tile of this size takes about as long as the overhead of a call, some 0.3 ms.
_LARGEST_TILE_PRODUCTS = 1 << 20


class TracedEngine(TorchEngine):
    """`StepEngine` that runs a recorded gradient; with reduction "any" a rank's microbatches are computed as one.

    Results agree with `EagerEngine`'s to rounding, but random layers draw other numbers; with reduction "fixed",
    results are the same on any number of ranks.
    """

    optimizer: FlatOptimizer
    weights_digest: CrcOfWeights

    def __init__(self, inputs: EngineInputs, gradient: TracedGradient) -> None:
        super().__init__(inputs)
        self._gradient = gradient
        # The number of rows of a joined microbatch is known from the first one on.
        self._tiles = None if self.joins_microbatches else self._plan_tiles(gradient.example)

    def make_optimizer(self) -> FlatOptimizer:
        """See `StandardEngine.make_optimizer`."""
        return FlatOptimizer(self.parameters, self.training.optimizer)

    def take_steps(self, first_step: int, num_steps: int, learning_rate: float, stop_requested: bool) -> StepResult:
        """See `StepEngine.take_steps`: one step. Collective."""
        self.weights_digest.add_in_step()
        rows = list(self._rows_of_tiles(first_step))
        partials = rows[0] if len(rows) == 1 else torch.cat(rows)
        partials[:, -1] = float(stop_requested)
        self.loss_sums[: len(partials)] += partials[:, -EXTRA_ENTRIES:-1]
        total = self.reducer.reduce(partials)
        loss_sum, weight_sum, stop_flags = total[-EXTRA_ENTRIES:].tolist()
        gradient = total[:-EXTRA_ENTRIES] / weight_sum  # the same bits on all ranks
        if self.training.gradient_clip_norm is not None:
            clip(gradient, self.training.gradient_clip_norm)
        self.optimizer.step(gradient, learning_rate)
        self.update_average()
        return StepResult([loss_sum / weight_sum], stop_flags > 0)

    def _plan_tiles(self, example: Microbatch) -> list[Tile]:
        owned = range(1) if self.joins_microbatches else self.inputs.virtual_ranks.owned
        num_all = 1 if self.joins_microbatches else self.plan.num_virtual_ranks
        size = tile_size(example, len(self.optimizer.weights), num_all)
        firsts = range(owned.start - owned.start % size, owned.stop, size)
        return [Tile(self._gradient, example, first, size, owned) for first in firsts]

    def _rows_of_tiles(self, step_in_epoch: int) -> Iterator[torch.Tensor]:
        """Yield each tile's rows (c, n + 3), in the order of the microbatches."""
        if self.joins_microbatches:
            whole = self.joined_microbatch(step_in_epoch)
            self._tiles = self._tiles or self._plan_tiles(whole)
            joined = Microbatch(whole.virtual_rank, whole.inputs[None], whole.targets[None], whole.weights[None])
            yield self._rows_of(self._tiles[0], joined, step_in_epoch)
            return
        for tile in self._tiles or ():
            yield self._rows_of(
                tile, self.timed(self.step_microbatches.stacked, step_in_epoch, tile.own), step_in_epoch
            )

    def _rows_of(self, tile: Tile, microbatches: Microbatch, step_in_epoch: int) -> torch.Tensor:
        with kept_random_state(self.ranks.device, self._gradient.draws_numbers):
            if self._gradient.draws_numbers:
                number = self.ranks.rank if self.joins_microbatches else tile.first
                seed_stream(self.inputs.seed, self.epoch, step_in_epoch, number)
            return tile.rows(microbatches)


def tile_size(example: Microbatch, num_parameters: int, num_microbatches: int) -> int:
    """Return the number of microbatches like `example` in a call: a power of two, at most `num_microbatches`.

    Computing them takes at most about as long as the overhead of the call, unless a single microbatch takes longer.
    The number depends on network and batch only, because the order of the sums within a microbatch depends on it.
    """
    num_points = example.targets.numel() // example.targets.shape[1]  # of a field: rows times columns
    fitting = max(1, _LARGEST_TILE_PRODUCTS // (num_points * num_parameters))
    return int(min(num_microbatches, 1 << int(math.log2(fitting))))


class Tile:
    """The owned ones of the microbatches `first` to `first` + `size` - 1, computed in one call."""

    def __init__(self, gradient: TracedGradient, example: Microbatch, first: int, size: int, owned: range) -> None:
        self.first = first
        inside = range(max(first, owned.start), min(first + size, owned.stop))
        # Their positions among this rank's microbatches, and within the tile.
        self.own = slice(inside.start - owned.start, inside.stop - owned.start)
        self._places = slice(inside.start - first, inside.stop - first)
        whole = random_microbatches(example, size)
        self._compute = gradient.compile(whole)
        # Empty places have weight 0, but are computed too: with fewer places the numbers would be elsewhere in the
        # vectors of torch's loops, which compute the last elements by other functions, with other rounding.
        is_whole = len(inside) == size
        self._memory = () if is_whole else tuple(torch.zeros_like(tensor) for tensor in data_of(whole))

    def rows(self, microbatches: Microbatch) -> torch.Tensor:
        """Return the rows (c, n + 3) of the c owned `microbatches` (c, b, ...)."""
        if not self._memory:
            return self._compute(*data_of(microbatches))
        for memory, own in zip(self._memory, data_of(microbatches), strict=True):
            memory[self._places] = own
        return self._compute(*self._memory)[self._places]
