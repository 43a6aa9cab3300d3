"""Components of a user with typed options: an optimiser, a loss and a network."""

from typing import Literal

import torch
from torch.optim import SGD

from mpitrain.config.section import Count, PositiveNumber
from mpitrain.models.networks.network import Network
from mpitrain.train.losses.loss import Loss
from mpitrain.train.optimizers.optimizer import Optimizer


class Damped(Optimizer):
    """Stochastic gradient descent whose weights shrink."""

    type: Literal["my_typed:Damped"] = "my_typed:Damped"
    damping: PositiveNumber = 0.1
    """Fraction of the weights that a step takes off."""

    def build(self, parameters, arithmetic="plain"):
        """Return the optimiser."""
        return SGD(parameters, self.learning_rate, weight_decay=self.damping, foreach=False)


class Quartic(Loss):
    """The fourth power of the error."""

    type: Literal["my_typed:Quartic"] = "my_typed:Quartic"
    scale: PositiveNumber = 1.0
    """Unit of the error."""

    def build(self):
        """Return the function of outputs and targets."""
        return lambda outputs, targets: torch.pow((outputs - targets) / self.scale, 4)


class Needy(Loss):
    """A power of the error, which must be given."""

    type: Literal["my_typed:Needy"] = "my_typed:Needy"
    power: PositiveNumber
    """Exponent of the error."""

    def build(self):
        """Return the function of outputs and targets."""
        return lambda outputs, targets: (outputs - targets).abs().pow(self.power)


class Chain(Network):
    """Two dense layers."""

    name: Literal["my_typed:Chain"] = "my_typed:Chain"
    width: Count = 4
    """Number of hidden units."""

    def build(self, num_inputs, num_outputs):
        """Return the module."""
        first, second = torch.nn.Linear(num_inputs, self.width), torch.nn.Linear(self.width, num_outputs)
        return torch.nn.Sequential(first, torch.nn.Tanh(), second)
