"""Python's side of a trace: the real trainer, watched.

V  virtual ranks      b  rows a slice      N  samples      F  input features
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mpitrain.comm.session import Session
from mpitrain.config import RunConfig
from mpitrain.data.batches import BatchPlan, EpochOrder
from mpitrain.data.ownership import take_run
from mpitrain.data.partition import members_of, split_validation
from mpitrain.data.reference_data import ReferenceData
from mpitrain.data.samples import Samples, valid_rows
from mpitrain.data.streamed_data import StreamedData
from mpitrain.data.training_data import Normalization
from mpitrain.equivalence.trace import Trace, write_trace
from mpitrain.models.jacobian import scalar_jacobian
from mpitrain.train.setup import TrainingParts, build_parts
from mpitrain.train.stop_request import StopRequest
from mpitrain.train.trainer import Trainer
from mpitrain.train.training_state import TrainingState, named_weights


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


def record_run(
    config: RunConfig, session: Session, samples: Samples, trace_steps: Sequence[int]
) -> tuple[Trace, TrainingParts, float]:
    """Train as `config` says and return its trace, its parts, and the median step's time in us. Collective.

    The trace is whole on the root rank.
    """
    trace = Trace()
    own = samples if config.semantics == "reference" else take_run(samples, session)
    parts = build_parts(config, session, own, None)
    kept = samples.take(np.flatnonzero(valid_rows(samples)))
    trace.arrays["selected_index"] = kept.grid_index
    _add_partition(trace, session, parts)
    _add_weights(trace, "initial", parts.model)
    _add_forward(trace, session, parts)
    recorder = TraceRecorder(parts.model, trace, trace_steps)
    _fit(config, session, parts, recorder)
    trace.arrays["loss"] = recorder.losses().astype(config.training.dtype)
    _add_weights(trace, "weights_final", parts.model)
    outputs, jacobian = scalar_jacobian(parts.model, torch.from_numpy(kept.inputs).to(_normalization(parts).mean.dtype))
    trace.arrays["prediction"], trace.arrays["jacobian"] = _array(outputs), _array(jacobian)
    return trace, parts, recorder.median_step_us()


def _fit(config: RunConfig, session: Session, parts: TrainingParts, recorder: TraceRecorder) -> None:
    trainer = Trainer(
        config, session, parts.model, parts.optimizer, parts.engine, lambda *_: None, recorder, StopRequest(),
        one_by_one=True,
    )  # fmt: skip
    trainer.fit()


def _shares(parts: TrainingParts) -> Sequence[Any]:
    if isinstance(parts.data, StreamedData):
        raise TypeError("a trace is of samples in memory")
    return [parts.data] if isinstance(parts.data, ReferenceData) else parts.data.training


def _normalization(parts: TrainingParts) -> Normalization:
    return parts.data.normalization if isinstance(parts.data, ReferenceData) else parts.data.summary.normalization


def _add_partition(trace: Trace, session: Session, parts: TrainingParts) -> None:
    own = np.concatenate([share.grid_index for share in _shares(parts)])
    gathered = session.gather_object(own)
    trace.arrays["partition_count"] = np.array([len(part) for part in gathered])
    trace.arrays["partition_index"] = np.concatenate(gathered)
    trace.arrays["input_mean"] = _array(_normalization(parts).mean)
    trace.arrays["input_std"] = _array(_normalization(parts).std)


@torch.no_grad()
def _add_forward(trace: Trace, session: Session, parts: TrainingParts) -> None:
    outputs = [_array(parts.model(share.inputs).view(-1)) for share in _shares(parts) if len(share.targets)]
    own = np.concatenate(outputs) if outputs else np.empty(0, _normalization(parts).mean.numpy().dtype)
    trace.arrays["forward_step1"] = np.concatenate(session.gather_object(own))


def _add_weights(trace: Trace, prefix: str, model: torch.nn.Module) -> None:
    for name, values in named_weights(model).items():
        trace.arrays[f"{prefix}.{name}"] = values.numpy()


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    return np.array(tensor.detach().cpu().numpy())


def write_batch_order(path: Path, config: RunConfig, plan: BatchPlan, samples: Samples, num_epochs: int) -> None:
    """Write which samples every step of `standard` semantics takes, for the C++ program. Called on one rank.

    training_index (n_train,): positions among the valid selected samples; batch_order (step, V, b): training sample
    numbers, -1 for a row of weight zero.
    """
    num_valid = int(valid_rows(samples).sum())
    training, _ = split_validation(num_valid, config.validation_split, config.seed)
    orders = [_epoch_order(v, config, plan, len(training)) for v in range(plan.num_virtual_ranks)]
    order = np.empty((num_epochs * plan.steps_per_epoch, plan.num_virtual_ranks, plan.slice_rows), dtype=np.int64)
    for epoch in range(num_epochs):
        for v, own in enumerate(orders):
            own.start_epoch(epoch)
            members = np.concatenate(
                [members_of(v, plan.num_virtual_ranks, len(training)), np.full(plan.slice_rows, -1)]
            )
            for step in range(plan.steps_per_epoch):
                rows = np.minimum(own.rows(step).numpy(), len(members) - 1)
                order[epoch * plan.steps_per_epoch + step, v] = members[rows]
    write_trace(path, Trace({"training_index": training, "batch_order": order}))


def _epoch_order(virtual_rank: int, config: RunConfig, plan: BatchPlan, num_training: int) -> EpochOrder:
    count = len(members_of(virtual_rank, plan.num_virtual_ranks, num_training))
    return EpochOrder(virtual_rank, count, plan, config.seed, config.shuffle)


def write_initial_weights(path: Path, config: RunConfig, model: torch.nn.Module) -> None:
    """Write the weights that the C++ program starts from, all their digits."""
    arrays = {name: values.numpy() for name, values in named_weights(model).items()}
    write_trace(path, Trace(arrays, {"hidden_size": np.int64(config.model.hidden_size)}))
