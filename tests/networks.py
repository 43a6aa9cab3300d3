"""Networks that tests of several rooms need."""

from __future__ import annotations

from typing import Any

import torch
from pydantic_core import PydanticCustomError
from torch import nn

from mpitrain.config.model import NETWORKS
from mpitrain.errors import ConfigError
from mpitrain.models.build import build_model


def network_settings(**values: Any) -> Any:
    """Return the section `model` with these values. Raises ConfigError for wrong ones."""
    try:
        return NETWORKS.validate(values)
    except PydanticCustomError as error:
        raise ConfigError(str(error)) from error


def build_icenet(
    num_inputs: int, hidden_size: int, hidden_activation: str, seed: int, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """Return the IceNet of one output that a run with these settings begins with."""
    settings = {"name": "icenet", "hidden_size": hidden_size, "hidden_activation": hidden_activation}
    return build_model(network_settings(**settings), num_inputs, 1, seed, dtype)
