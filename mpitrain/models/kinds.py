"""Networks of either kind: numbers where the compiled engine computes, modules of torch's for all else."""

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
    """Return the network of `settings` for numbers to be put in: a `DenseModel`, or a module in evaluation mode.

    `dtype` is float32 or float64. Raises MissingDependencyError where a module is needed and torch is not installed,
    and ConfigError for settings that do not go together.
    """
    dense = build_dense(settings, num_inputs, num_outputs, dtype, transforms)
    if dense is not None:
        return dense
    require_torch(f"model.name={settings.name}")
    import torch

    from mpitrain.models.build import build_model

    return build_model(settings, num_inputs, num_outputs, 0, getattr(torch, dtype), transforms).eval()


def chain_of(model: Any) -> DenseChain | None:
    """Return the chain of dense layers that a network of either kind is; None for every other network."""
    if isinstance(model, DenseModel):
        return model.chain
    from mpitrain.models.mlp import dense_chain_of

    return dense_chain_of(model)


def graph_of(model: Any) -> FieldGraph | None:
    """Return what the layers of a cnn or unet are; None for every other network."""
    if isinstance(model, DenseModel):
        return None
    from mpitrain.models.convolutional.graph import field_graph_of

    return field_graph_of(model)


def has_batch_norm(model: Any) -> bool:
    """Whether a network of either kind has batch norm."""
    if isinstance(model, DenseModel):
        return model.chain.has_batch_norm
    from mpitrain.models.batch_norm import batch_norm_layers

    return bool(batch_norm_layers(model))


def exportable(module: Any) -> Any:
    """Return a module as files hold it, with torch's own batch norm. The module given is not to be used any more."""
    from mpitrain.models.batch_norm import make_exportable

    return make_exportable(module).eval()


def answer_physically(model: Any) -> None:
    """Let a module answer in physical units, as every file of it does; numbers answer in both ways anyway."""
    if not isinstance(model, DenseModel):
        from mpitrain.models.output_transforms import answer_physically as let_answer

        let_answer(model)


def file_module(model: Any) -> Any:
    """Return a network of either kind as a module as files hold it. Raises MissingDependencyError without torch."""
    if not isinstance(model, DenseModel):
        return model
    require_torch("this format")
    from mpitrain.models.dense_module import file_module_of

    return file_module_of(model)
