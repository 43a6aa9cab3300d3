"""Networks that tests of several rooms need."""

from __future__ import annotations

import torch
from torch import nn

from mpitrain.config.model import network_settings
from mpitrain.models.build import build_model


def build_icenet(
    num_inputs: int, hidden_size: int, hidden_activation: str, seed: int, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """Return the IceNet of one output that a run with these settings begins with."""
    settings = {"name": "icenet", "hidden_size": hidden_size, "hidden_activation": hidden_activation}
    return build_model(network_settings(**settings), num_inputs, 1, seed, dtype)
