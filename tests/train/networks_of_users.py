"""Networks of a user's own, good and bad, that tests name as networks_of_users:NAME."""

import os

import torch
from torch import nn


class Branching(nn.Module):
    """Uses its second branch in every other training step only."""

    def __init__(self, num_inputs, num_outputs):
        super().__init__()
        self.always, self.sometimes = nn.Linear(num_inputs, num_outputs), nn.Linear(num_inputs, num_outputs)
        self.num_passes = 0

    def forward(self, inputs):
        if not self.training:
            return self.always(inputs)
        self.num_passes += 1
        outputs = self.always(inputs)
        return outputs + self.sometimes(inputs) if self.num_passes % 2 else outputs


class DifferentOnEachRank(nn.Linear):
    """Draws its weights from where no seed reaches."""

    def __init__(self, num_inputs, num_outputs):
        super().__init__(num_inputs, num_outputs)
        with torch.no_grad():
            self.bias += int.from_bytes(os.urandom(4), "little") / 2**32


class OneNumberASample(nn.Linear):
    """Forgets the axis of the targets."""

    def forward(self, inputs):
        return super().forward(inputs)[:, 0]


class OneOutputTooMany(nn.Linear):
    """Has one column more than there are targets."""

    def __init__(self, num_inputs, num_outputs):
        super().__init__(num_inputs, num_outputs + 1)


class Shared(nn.Module):
    """One layer under two names, and one that has its weights."""

    def __init__(self, num_inputs, num_outputs):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(num_inputs, 6), nn.Linear(6, 6), nn.Linear(6, num_outputs)
        self.again, self.tied = self.inner, nn.Linear(6, 6)
        self.tied.weight = self.inner.weight

    def forward(self, inputs):
        return self.last(self.tied(self.again(self.inner(self.first(inputs)).tanh()).tanh()).tanh())


class Residual(nn.Module):
    """What many users bring: dense layers, layer norm and a connection around one of them."""

    def __init__(self, num_inputs, num_outputs):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(num_inputs, 12), nn.Linear(12, 12), nn.Linear(12, num_outputs)
        self.norm = nn.LayerNorm(12)

    def forward(self, inputs):
        hidden = torch.nn.functional.silu(self.first(inputs))
        hidden = hidden + torch.nn.functional.silu(self.middle(hidden))
        return self.last(self.norm(hidden))
