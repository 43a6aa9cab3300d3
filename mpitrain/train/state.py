"""The state of a training run: all numbers and tensors that a resumed run needs besides the data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from mpitrain.comm import Array, set_values

# Set from the data before training begins, and not changed by training.
NORMALIZATION_BUFFERS = ("input_mean", "input_std", "output_mean", "output_std")


@dataclass
class TrainingState:
    """Position, losses and counters so far. `epoch` counts finished epochs, `step_in_epoch` steps of the next one."""

    epoch: int = 0
    step_in_epoch: int = 0
    global_step: int = 0
    train_loss: float | None = None
    validation_loss: float | None = None
    best_loss: float | None = None
    best_epoch: int | None = None
    epochs_without_improvement: int = 0
    stopped_early: bool = False
    num_plateaus: int = 0
    epochs_on_plateau: int = 0
    plateau_loss: float | None = None
    jacobian: list[float] | None = None
    jacobian_change: float | None = None
    epochs_of_steady_jacobian: int = 0

    def to_manifest(self) -> dict[str, Any]:
        """Return the state as JSON values; floats are preserved bit for bit."""
        return dict(vars(self))

    @classmethod
    def from_manifest(cls, values: dict[str, Any]) -> TrainingState:
        """Return the state with the `values` that `to_manifest` returned."""
        # Checkpoints of earlier versions lack newer fields, which get their defaults.
        return cls(**{field.name: values.get(field.name, field.default) for field in fields(cls)})

    def record_epoch(self, train_loss: float, validation_loss: float | None) -> bool:
        """Count a finished epoch; return whether its validation loss is the best so far."""
        self.epoch += 1
        self.step_in_epoch = 0
        self.train_loss, self.validation_loss = train_loss, validation_loss
        if validation_loss is None:
            return False
        if self.best_loss is None or validation_loss < self.best_loss:
            self.best_loss, self.best_epoch, self.epochs_without_improvement = validation_loss, self.epoch, 0
            return True
        self.epochs_without_improvement += 1
        return False

    def record_jacobian(self, values: list[float], num_epochs: int, tolerance: float | None) -> None:
        """Record the mean Jacobian, `num_epochs` after the last one, and count epochs of changes below `tolerance`."""
        self.jacobian_change = None if self.jacobian is None else relative_change(values, self.jacobian)
        self.jacobian = values
        is_steady = tolerance is not None and self.jacobian_change is not None and self.jacobian_change < tolerance
        self.epochs_of_steady_jacobian = self.epochs_of_steady_jacobian + num_epochs if is_steady else 0

    def watch_plateau(self, patience: int) -> None:
        """Count a plateau when `patience` finished epochs in a row have not lowered the loss (validation's, if any)."""
        loss = self.train_loss if self.validation_loss is None else self.validation_loss
        if loss is not None and (self.plateau_loss is None or loss < self.plateau_loss):
            self.plateau_loss, self.epochs_on_plateau = loss, 0
            return
        self.epochs_on_plateau += 1
        if self.epochs_on_plateau > patience:
            self.num_plateaus, self.epochs_on_plateau = self.num_plateaus + 1, 0


def relative_change(values: Sequence[float], before: Sequence[float]) -> float:
    """Return ||values - before|| / ||values||, Euclidean norms; if ||values|| is 0: 0 if ||before|| is 0, else 1."""
    # fsum rounds once: the result is the same on every machine.
    difference = math.sqrt(math.fsum((one - other) ** 2 for one, other in zip(values, before, strict=True)))
    norm = math.sqrt(math.fsum(one**2 for one in values))
    return difference / norm if norm > 0 else float(difference > 0)


def named_weights(model: Any) -> dict[str, Array]:
    """Return copies on the CPU, by name, of all that training changes: parameters, then running statistics."""
    return {name: copied(array) for name, array in _trained(model).items()}


def copied(array: Array) -> Array:
    """Return a copy on the CPU."""
    return array.copy() if isinstance(array, np.ndarray) else array.detach().cpu().clone()


def load_named_weights(model: Any, weights: Mapping[str, Array]) -> None:
    """Set the model's weights to those of `named_weights`; names and shapes must agree."""
    for name, target in _trained(model).items():
        set_values(target, weights[name])


def load_statistics(model: Any, state: Mapping[str, Array]) -> None:
    """Set the normalisation statistics of inputs and outputs that `state` contains, by name."""
    for name in NORMALIZATION_BUFFERS:
        if name in state:
            set_values(model.get_buffer(name), state[name])


def without_prefix(tensors: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """Return the tensors with names that begin with `prefix`, by name without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _trained(model: Any) -> dict[str, Array]:
    kept = model.state_dict().keys() - NORMALIZATION_BUFFERS  # excludes non-persistent buffers
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in kept}
    return {**dict(model.named_parameters()), **buffers}
