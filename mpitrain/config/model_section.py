"""The section `model`: which network is trained."""

from __future__ import annotations

from typing import Literal

from mpitrain.config.section import Count, Section, Text


class ModelSection(Section):
    """The network."""

    name: Literal["icenet"] = "icenet"
    """Which network is trained."""
    input_size: Count = 7
    """Number of input features."""
    hidden_size: Count = 16
    """Number of hidden units."""
    output_size: Count = 1
    """Number of output features."""
    hidden_activation: Literal["none", "sigmoid", "relu", "gelu"] = "none"
    """Function between the two layers; the C++ program has none."""
    initial_weights: Text | None = None
    """Model file whose weights the training starts from; null draws them from the seed."""
    hidden_layers: Count = 1
    """Number of hidden layers."""
