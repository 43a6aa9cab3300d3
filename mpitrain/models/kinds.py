"""Networks of either kind: a `DenseModel` for the compiled engine, or a torch module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mpitrain.comm import require_torch
from mpitrain.config import TargetTransform
from mpitrain.models.dense import DenseChain, DenseModel, build_dense
from mpitrain.models.networks.network import Network

if TYPE_CHECKING:
    from mpitrain.models.convolutional.graph import FieldGraph


def empty_network(
    settings: Network, num_inputs: int, num_outputs: int, dtype: str,
    transforms: Sequence[TargetTransform | None] = (),
) -> Any:  # fmt: skip
    """Return the network of `settings`, to be filled with numbers: a `DenseModel`, or a module in evaluation mode.

    `dtype` is float32 or float64. Raises MissingDependencyError if a module is needed and torch is not installed, and
    ConfigError for contradictory settings.
    """
    dense = build_dense(settings, num_inputs, num_outputs, dtype, transforms)
    if dense is not None:
        return dense
    require_torch(f"model.name={settings.name}")
    import torch

    from mpitrain.models.build import build_model

    return build_model(settings, num_inputs, num_outputs, 0, getattr(torch, dtype), transforms).eval()


def chain_of(model: Any) -> DenseChain | None:
    """Return the description of IceNet or an mlp of either kind; None for every other network."""
    if isinstance(model, DenseModel):
        return model.chain
    from mpitrain.models.mlp import dense_chain_of

    return dense_chain_of(model)


def graph_of(model: Any) -> FieldGraph | None:
    """Return the graph of the layers of a cnn or unet; None for every other network."""
    if isinstance(model, DenseModel):
        return None
    from mpitrain.models.convolutional.graph import field_graph_of

    return field_graph_of(model)


def has_batch_norm(model: Any) -> bool:
    """Return whether a network of either kind has batch norm."""
    if isinstance(model, DenseModel):
        return model.chain.has_batch_norm
    from mpitrain.models.batch_norm import batch_norm_layers

    return bool(batch_norm_layers(model))


def exportable(module: Any) -> Any:
    """Return a module as stored in files, with torch's own batch norm. `module` must not be used afterwards."""
    from mpitrain.models.batch_norm import make_exportable

    return make_exportable(module).eval()


def output_physical_units(model: Any) -> None:
    """Make a torch module return physical units, as in its files; a `DenseModel` has no such state and is unchanged."""
    if not isinstance(model, DenseModel):
        from mpitrain.models.output_transforms import output_physical_units as let_answer

        let_answer(model)


def file_module(model: Any) -> Any:
    """Return a network of either kind as the module stored in files. Raises MissingDependencyError without torch."""
    if not isinstance(model, DenseModel):
        return model
    require_torch("this format")
    from mpitrain.models.dense_module import file_module_of

    return file_module_of(model)
