"""Initial weights of the built-in networks, bit for bit the same on every machine.

torch draws several numbers at once with vector instructions, so that its initial weights depend on the kind of CPU. The
weights here have the distributions of torch's own layers, but come from the keyed generator; first_weights.cpp of the
C++ program draws the same numbers.
"""

from __future__ import annotations

import torch
from torch import nn

from mpitrain.models.batch_norm import batch_norm_layers
from mpitrain.models.dense import initial_weights_of
from mpitrain.models.files.record import engine_of
from mpitrain.models.icenet import IceNet
from mpitrain.models.normalized import BlockNetwork, NormalizedModel

_LAYERS = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)


def has_own_initial_weights(model: nn.Module) -> bool:
    """Return whether `draw_initial_weights` can initialise the network: False if its layers are a user's."""
    return isinstance(model, IceNet) or (isinstance(model, NormalizedModel) and isinstance(model.network, BlockNetwork))


def can_be_reinitialised(model: nn.Module) -> bool:
    """Return whether setting initial weights and statistics makes a trained network equal to a newly built one."""
    # Other engines may have registered hooks; batch norm also has running statistics.
    return has_own_initial_weights(model) and engine_of(model) == "compiled" and not batch_norm_layers(model)


@torch.no_grad()
def draw_initial_weights(model: nn.Module, seed: int) -> None:
    """Set the initial weights and biases of all layers; parameter n depends only on (seed, n) and its shape.

    The numbers are those of `initial_weights_of`. Layer norms are reset to scales of 1 and offsets of 0, also in a
    trained model.
    """
    fan_in = {
        id(parameter): layer.weight[0].numel()
        for layer in model.modules()
        if isinstance(layer, _LAYERS)
        for parameter in layer.parameters(recurse=False)
    }
    for layer in model.modules():
        if isinstance(layer, nn.LayerNorm):
            layer.reset_parameters()
    for number, (name, parameter) in enumerate(model.named_parameters()):
        if id(parameter) not in fan_in:
            continue
        is_xavier = isinstance(model, IceNet) and name in ("fc1.weight", "fc2.weight")
        values = initial_weights_of(seed, number, parameter.shape, fan_in[id(parameter)], is_xavier)
        parameter.copy_(torch.from_numpy(values))
