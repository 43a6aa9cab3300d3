"""Python's side of a trace: a run performed stage by stage, and a record of its samples, shares and steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mpitrain.comm import Array, Ranks, host_array
from mpitrain.config import RunConfig
from mpitrain.data import BatchPlan, Samples, open_source_on_root, selection_of, valid_rows
from mpitrain.data.dataset.exchange import read_own_chunks
from mpitrain.data.dataset.in_memory import InMemoryDataset
from mpitrain.data.dataset.reference import ReferenceDataset
from mpitrain.models.jacobian import scalar_jacobian
from mpitrain.runs.prepare import prepare_on_samples
from mpitrain.train import Callback, StopRequest, Trainer, TrainingState, named_weights
from mpitrain.verify.trace import Trace


class TraceRecorder(Callback):
    """Callback that records all losses, gradients and weights of the traced steps, and the time of each step."""

    def __init__(self, model: torch.nn.Module, trace: Trace, trace_steps: Sequence[int]) -> None:
        self._model, self._trace, self._trace_steps = model, trace, frozenset(trace_steps)
        self.losses: list[float] = []
        """Every step's loss."""
        self.ends_s = [time.perf_counter()]
        """The time at which the first step began, then the time at which each step ended, recording included."""

    def on_steps(self, state: TrainingState, losses: Sequence[float], learning_rate: float) -> None:
        """See `Callback.on_steps`: one step."""
        self.ends_s.append(time.perf_counter())
        self.losses.extend(losses)
        if state.global_step in self._trace_steps:
            for name, parameter in self._model.named_parameters():
                if parameter.grad is not None:
                    self._trace.arrays[f"gradient_step{state.global_step}.{name}"] = trace_array(parameter.grad)
            add_weights(self._trace, f"weights_step{state.global_step}", self._model)


@dataclass(frozen=True)
class Recorded:
    """The trace of a run, complete on the root, and what the C++ program needs to repeat the run."""

    trace: Trace
    selected: Samples
    plan: BatchPlan


def add_partition(trace: Trace, ranks: Ranks, dataset: InMemoryDataset | ReferenceDataset) -> None:
    """Add the samples that each rank trains on, and the statistics of the inputs. Collective."""
    own = np.concatenate([share.grid_index for share in dataset.training])
    gathered = ranks.gather_object(own)
    trace.arrays["partition_count"] = np.array([len(part) for part in gathered])
    trace.arrays["partition_index"] = np.concatenate(gathered)
    trace.arrays["input_mean"] = trace_array(dataset.summary.normalization.mean)
    trace.arrays["input_std"] = trace_array(dataset.summary.normalization.std)


@torch.no_grad()
def add_forward(
    trace: Trace, ranks: Ranks, dataset: InMemoryDataset | ReferenceDataset, model: torch.nn.Module
) -> None:
    """Add the model's outputs for all training samples. Collective."""
    inputs = [torch.as_tensor(share.inputs) for share in dataset.training if len(share.targets)]
    outputs = [trace_array(model(own).view(-1)) for own in inputs]
    own = np.concatenate(outputs) if outputs else np.empty(0, trace_array(dataset.summary.normalization.mean).dtype)
    trace.arrays["forward_step1"] = np.concatenate(ranks.gather_object(own))


def add_weights(trace: Trace, prefix: str, model: torch.nn.Module) -> None:
    """Add the weights of the model, each by its name with `prefix`."""
    for name, values in named_weights(model).items():
        trace.arrays[f"{prefix}.{name}"] = host_array(values)


def trace_array(tensor: Array) -> np.ndarray[Any, Any]:
    """Return a copy of the tensor in numpy, of the same shape and dtype."""
    return np.array(host_array(tensor))


def record_run(config: RunConfig, ranks: Ranks, trace_steps: Sequence[int]) -> Recorded:
    """Train with the settings `config`, in the stages of a run (`mpitrain.runs`), and return its trace. Collective.

    The engine must leave gradients in the parameters: it is that of `reference`, or the eager one.
    """
    source = open_source_on_root(selection_of(config), ranks)
    prepared = prepare_on_samples(config, read_own_chunks(source, ranks), ranks)
    dataset: Any = prepared.dataset  # held in memory
    model = prepared.model
    selected = ranks.on_all_ranks(source.read_all)
    kept = selected.take(np.flatnonzero(valid_rows(selected)))
    trace = Trace({"selected_index": kept.grid_index})
    add_partition(trace, ranks, dataset)
    add_weights(trace, "initial", model)
    add_forward(trace, ranks, dataset, model)
    recorder = TraceRecorder(model, trace, trace_steps)
    Trainer(config.training, ranks, model, prepared.engine, [recorder], StopRequest(), one_step_per_call=True).fit()
    trace.arrays["loss"] = np.array(recorder.losses, config.training.dtype)
    add_weights(trace, "weights_final", model)
    outputs, jacobian = scalar_jacobian(model, torch.from_numpy(kept.inputs.astype(config.training.dtype)))
    trace.arrays["prediction"], trace.arrays["jacobian"] = trace_array(outputs), trace_array(jacobian)
    trace.attributes["median_us_per_step"] = float(np.median(np.diff(recorder.ends_s)) * 1e6)
    return Recorded(trace, kept, prepared.plan)
