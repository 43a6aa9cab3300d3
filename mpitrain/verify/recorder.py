"""Python's side of a trace: a run taken stage by stage, and watched.

V  virtual ranks      b  rows a slice      N  samples      F  input features
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mpitrain.comm.ranks import Ranks
from mpitrain.config import RunConfig
from mpitrain.data.dataset.batches import BatchPlan
from mpitrain.data.dataset.exchange import open_source_on_root, read_own_chunks
from mpitrain.data.open_dataset import HeldDataset, torch_dtype
from mpitrain.data.samples import Samples, valid_rows
from mpitrain.data.selection.settings import selection_of
from mpitrain.runs.engine import build_engine, open_microbatches, plan_run_batches
from mpitrain.runs.layout import plan_layout
from mpitrain.train.choose_engine import choose_engine
from mpitrain.train.state import TrainingState, named_weights
from mpitrain.train.stop_request import StopRequest
from mpitrain.train.trainer import Trainer
from mpitrain.verify.stages import Stages
from mpitrain.verify.trace import Trace


class TraceRecorder:
    """A trainer's watcher that keeps losses, gradients and weights of the traced steps, and each step's time."""

    def __init__(self, model: torch.nn.Module, trace: Trace, trace_steps: Sequence[int]) -> None:
        self._model, self._trace, self._trace_steps = model, trace, frozenset(trace_steps)
        self._losses: list[float] = []
        self._ends_s = [time.perf_counter()]

    def on_steps(self, state: TrainingState, losses: Sequence[float], learning_rate: float) -> None:
        """See `Watcher.on_steps`: one step."""
        self._ends_s.append(time.perf_counter())
        self._losses.extend(losses)
        if state.global_step in self._trace_steps:
            for name, parameter in self._model.named_parameters():
                if parameter.grad is not None:
                    self._trace.arrays[f"gradient_step{state.global_step}.{name}"] = _array(parameter.grad)
            _add_weights(self._trace, f"weights_step{state.global_step}", self._model)

    def on_epoch(self, state: TrainingState, learning_rate: float, wall_time_s: float) -> None:
        """See `Watcher.on_epoch`."""

    def losses(self) -> np.ndarray[Any, Any]:
        """Return every step's loss."""
        return np.array(self._losses)

    def median_step_us(self) -> float:
        """Return the median time of a step in microseconds, recording included."""
        return float(np.median(np.diff(self._ends_s)) * 1e6)


@dataclass(frozen=True)
class Recorded:
    """A run's trace, whole on the root, and what the C++ program needs to repeat it."""

    trace: Trace
    selected: Samples
    plan: BatchPlan


def record_run(config: RunConfig, ranks: Ranks, trace_steps: Sequence[int], stages: Stages) -> Recorded:
    """Train as `config` says, stage by stage as a run does (`mpitrain.runs`), and return its trace. Collective."""
    source = open_source_on_root(stages.select(selection_of(config)), ranks)
    layout = plan_layout(config, ranks, None)
    dataset = stages.hold_samples(config, read_own_chunks(source, ranks), layout.virtual_ranks, ranks)
    model = stages.build_model(config, dataset.summary, ranks)
    plan = plan_run_batches(config, dataset, layout, ranks)
    sources, example = open_microbatches(config, dataset, model, plan, ranks, set())
    choice = choose_engine(config, ranks, model, example, None)
    of_engine = stages.session_of_engine(ranks)
    engine = build_engine(config, choice, dataset, model, sources, plan, layout, of_engine)
    stages.adjust_engine(engine)
    selected = ranks.on_all_ranks(source.read_all)
    kept = selected.take(np.flatnonzero(valid_rows(selected)))
    trace = Trace({"selected_index": kept.grid_index})
    _add_partition(trace, ranks, dataset)
    _add_weights(trace, "initial", model)
    _add_forward(trace, ranks, dataset, model)
    recorder = TraceRecorder(model, trace, trace_steps)
    Trainer(config, ranks, model, engine, lambda *_: None, recorder, StopRequest(), one_by_one=True).fit()
    trace.arrays["loss"] = recorder.losses().astype(config.training.dtype)
    _add_weights(trace, "weights_final", model)
    outputs, jacobian = stages.jacobian(model, torch.from_numpy(kept.inputs).to(torch_dtype(config)))
    trace.arrays["prediction"], trace.arrays["jacobian"] = _array(outputs), _array(jacobian)
    trace.attributes["median_us_per_step"] = recorder.median_step_us()
    return Recorded(trace, kept, plan)


def _add_partition(trace: Trace, ranks: Ranks, dataset: HeldDataset) -> None:
    own = np.concatenate([share.grid_index for share in dataset.training])
    gathered = ranks.gather_object(own)
    trace.arrays["partition_count"] = np.array([len(part) for part in gathered])
    trace.arrays["partition_index"] = np.concatenate(gathered)
    trace.arrays["input_mean"] = _array(dataset.summary.normalization.mean)
    trace.arrays["input_std"] = _array(dataset.summary.normalization.std)


@torch.no_grad()
def _add_forward(trace: Trace, ranks: Ranks, dataset: HeldDataset, model: torch.nn.Module) -> None:
    outputs = [_array(model(share.inputs).view(-1)) for share in dataset.training if len(share.targets)]
    own = np.concatenate(outputs) if outputs else np.empty(0, _array(dataset.summary.normalization.mean).dtype)
    trace.arrays["forward_step1"] = np.concatenate(ranks.gather_object(own))


def _add_weights(trace: Trace, prefix: str, model: torch.nn.Module) -> None:
    for name, values in named_weights(model).items():
        trace.arrays[f"{prefix}.{name}"] = values.numpy()


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    return np.array(tensor.detach().cpu().numpy())
