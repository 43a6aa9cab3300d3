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
    """Position, losses and counters of a training run so far, the same on all ranks.

    Attributes
    ----------
    epoch : int
        Number of finished epochs.
    step_in_epoch : int
        Number of steps taken in the next epoch; 0 between epochs.
    global_step : int
        Number of optimiser steps, over all epochs.
    train_loss : float or None
        Mean loss of the samples of the last finished epoch, each before its step.
    validation_loss : float or None
        Mean loss of the held-out samples after the last finished epoch; None without any.
    best_loss, best_epoch : float or None, int or None
        The lowest validation loss and its epoch, counted from 1; epoch 0 is that of the initial weights.
    epochs_without_improvement : int
        Number of finished epochs since the best one.
    stopped_early : bool
        Whether early stopping or a steady Jacobian ends the training.
    num_plateaus, epochs_on_plateau : int
        Number of plateaus, and of epochs without a lower loss since the lowest one or the last plateau.
    plateau_loss : float or None
        The lowest loss that `watch_plateau` has found.
    jacobian : list of float or None, length O * F
        The mean Jacobian (O, F), row by row, in physical units, as last recorded.
    jacobian_change : float or None
        Relative change of the Jacobian since the one before; None for the first one.
    epochs_of_steady_jacobian : int
        Number of epochs with a change below the tolerance, up to the last record.
    """

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
        """Return the state as JSON values.

        Returns
        -------
        dict of str to object
            One entry for each attribute; floats are preserved bit for bit.
        """
        return dict(vars(self))

    @classmethod
    def from_manifest(cls, values: dict[str, Any]) -> TrainingState:
        """Return the state with the values that `to_manifest` returned.

        Parameters
        ----------
        values : dict of str to object
            Missing attributes, as in checkpoints of earlier versions, get their defaults; other keys are ignored.

        Returns
        -------
        TrainingState
        """
        # Checkpoints of earlier versions lack newer fields, which get their defaults.
        return cls(**{field.name: values.get(field.name, field.default) for field in fields(cls)})

    def record_epoch(self, train_loss: float, validation_loss: float | None) -> bool:
        """Count a finished epoch.

        Parameters
        ----------
        train_loss : float
            Mean loss of the epoch's samples.
        validation_loss : float or None
            Mean loss of the held-out samples; None without any.

        Returns
        -------
        bool
            Whether the validation loss is the lowest so far; False without a validation loss.
        """
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
        """Record the mean Jacobian, and count epochs of changes below the tolerance.

        Parameters
        ----------
        values : list of float, length O * F
            The mean Jacobian (O, F), row by row.
        num_epochs : int
            Number of epochs since the last record.
        tolerance : float or None
            A relative change below it is steady; None: none is.

        Notes
        -----
        The change is ||J - J_before|| / ||J|| (Euclidean norms, see `relative_change`).
        """
        self.jacobian_change = None if self.jacobian is None else relative_change(values, self.jacobian)
        self.jacobian = values
        is_steady = tolerance is not None and self.jacobian_change is not None and self.jacobian_change < tolerance
        self.epochs_of_steady_jacobian = self.epochs_of_steady_jacobian + num_epochs if is_steady else 0

    def watch_plateau(self, patience: int) -> None:
        """Count a plateau when more than `patience` finished epochs in a row have not lowered the loss.

        Parameters
        ----------
        patience : int
            Number of epochs without a lower loss that are not yet a plateau, as in torch's ReduceLROnPlateau.

        Notes
        -----
        Call it once per finished epoch. The loss is the validation loss, or the training loss if no samples are held
        out. After a plateau the count of epochs starts from 0 again; the lowest loss is kept.
        """
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
    """Return copies on the CPU, by name, of the parameters and buffers that belong to a model's weights.

    Parameters
    ----------
    model : DenseModel or torch.nn.Module

    Returns
    -------
    dict of str to ndarray or Tensor
        All parameters, then all persistent buffers, such as running statistics, without the statistics that normalise
        inputs and targets. Both are in the model's order.
    """
    return {name: copied(array) for name, array in _trained(model).items()}


def copied(array: Array) -> Array:
    """Return a copy on the CPU."""
    return array.copy() if isinstance(array, np.ndarray) else array.detach().cpu().clone()


def load_named_weights(model: Any, weights: Mapping[str, Array]) -> None:
    """Copy the weights that `named_weights` returned into a model.

    Parameters
    ----------
    model : DenseModel or torch.nn.Module
        A model of the same architecture.
    weights : mapping of str to ndarray or Tensor
        Each name of `named_weights(model)`, with the same shape; other names are ignored.

    Raises
    ------
    KeyError
        A name is missing; parameters before it may have been set.
    """
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
