"""The engine for small networks on GPUs: one step is recorded as a CUDA graph, and each step is one replay of it.

The kernels of a small network take less time than their launches from Python; a replay launches all of them at once.
"""

from __future__ import annotations

import torch

from mpitrain.data import Microbatch
from mpitrain.errors import ConfigError
from mpitrain.train.engines.contract import StepResult
from mpitrain.train.engines.eager import EagerEngine, clip
from mpitrain.train.engines.standard import EXTRA_ENTRIES, EngineInputs

_WARM_UP_STEPS = 3


class CudaGraphEngine(EagerEngine):
    """`StepEngine` that replays `EagerEngine`'s step, forward to optimiser, from fixed memory; reduction "any" only."""

    def __init__(self, inputs: EngineInputs) -> None:
        super().__init__(inputs)
        if self._draws_numbers or self._batch_norm.num_sums or self._precision.scaler.is_enabled():
            raise ConfigError(
                "training.engine=cuda_graph: cannot record dropout, batch norm or the float16 loss scale; use "
                "training.engine=eager"
            )
        self._learning_rate = torch.zeros((), device=self.ranks.device)
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate
            group[self.training.optimizer.graph_flag] = True
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stop_flag, self._total = (torch.zeros(size, device=self.ranks.device) for size in ((), EXTRA_ENTRIES))

    def take_steps(self, first_step: int, num_steps: int, learning_rate: float, stop_requested: bool) -> StepResult:
        """See `StepEngine.take_steps`: one step. Collective."""
        microbatch = self.joined_microbatch(first_step)
        if self._graph is None:
            self._graph = self._record(microbatch)
        for fixed, given in zip(self._memory, (microbatch.inputs, microbatch.targets, microbatch.weights), strict=True):
            fixed.copy_(given)
        self._learning_rate.fill_(learning_rate)
        self._stop_flag.fill_(float(stop_requested))
        self._graph.replay()
        loss_sum, weight_sum, stop_flags = self._total.tolist()
        return StepResult([loss_sum / weight_sum], stop_flags > 0)

    def _record(self, microbatch: Microbatch) -> torch.cuda.CUDAGraph:
        """Record a step on copies of `microbatch`, and restore the weights and the optimiser's state. Collective."""
        self._memory = tuple(tensor.clone() for tensor in (microbatch.inputs, microbatch.targets, microbatch.weights))
        before = [tensor.clone() for tensor in self._changing()]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        # Before the recording, so that libraries are initialised and the optimiser's state is allocated.
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP_STEPS):
                self._whole_step(microbatch.virtual_rank)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._whole_step(microbatch.virtual_rank)
        after = self._changing()
        for tensor, value in zip(after, before + [torch.zeros_like(new) for new in after[len(before) :]], strict=True):
            tensor.copy_(value)
        return graph

    def _changing(self) -> list[torch.Tensor]:
        # State that the warm-up allocated comes last; `_record` sets it to zero.
        state = [value for own in self.optimizer.state.values() for value in own.values() if value is not None]
        averages = list(self.average.values.values()) if self.average is not None else []
        return [parameter.data for parameter in self.parameters] + [self.loss_sums, *averages] + state

    def _whole_step(self, virtual_rank: int) -> None:
        self._write_partials([Microbatch(virtual_rank, *self._memory)], 0)
        self._partials[:, -1] = self._stop_flag
        self.loss_sums[:1] += self._partials[:, -EXTRA_ENTRIES:-1]
        total = self.reducer.reduce(self._partials)
        self._total.copy_(total[-EXTRA_ENTRIES:])
        gradient = total[:-EXTRA_ENTRIES] / total[-2]
        if self.training.gradient_clip_norm is not None:
            clip(gradient, self.training.gradient_clip_norm)
        self._assign_gradients(gradient)
        self.optimizer.step()
        self.update_average()
