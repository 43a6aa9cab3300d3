"""Construction of the network that the section `model` describes; the seed determines its weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from mpitrain.config import TargetTransform, show_value
from mpitrain.errors import ConfigError
from mpitrain.models.batch_norm import use_virtual_batch_norm
from mpitrain.models.files.record import store_architecture
from mpitrain.models.networks.network import Network
from mpitrain.models.normalized import BlockNetwork, NormalizedModel
from mpitrain.models.output_transforms import OutputInverse, output_transformed_targets

_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def build_model(
    settings: Network, num_inputs: int, num_outputs: int, seed: int, dtype: torch.dtype = torch.float32,
    transforms: Sequence[TargetTransform | None] = (),
) -> nn.Module:  # fmt: skip
    """Return the network of `settings` for `num_inputs` (F) and `num_outputs` (O), with the same weights on all ranks.

    `transforms` (O,) holds the transform of each target, None for no transform; () if no target is transformed. The
    state of torch's CPU generator is restored. Raises ConfigError for contradictory settings, and if a user's network
    cannot be built.
    """
    settings = settings.resolved(None)
    settings.check_size(num_inputs, num_outputs)
    for option, value, reason in settings.problems():
        raise ConfigError(f"model.{option}={show_value(value)}: {reason}")
    with torch.random.fork_rng(devices=[]):
        # Named code may draw random numbers on any device.
        (torch.manual_seed if settings.is_code else torch.default_generator.manual_seed)(seed)
        # Drawn as float32 for every dtype, so that float64 runs start from the same weights.
        built = settings.build(num_inputs, num_outputs)
    model = use_virtual_batch_norm(built).to(dtype)
    if any(transforms) and isinstance(model, NormalizedModel):
        model.inverse = OutputInverse(transforms)
    store_architecture(model, settings)
    return model


def build_learner(
    settings: Network, num_inputs: int, target_names: Sequence[str], seed: int, dtype: torch.dtype
) -> nn.Module:
    """Return the network for targets of these names, for training: its outputs are the transformed targets."""
    by_name = settings.transforms
    transforms = [by_name.get(name) for name in target_names]
    model = build_model(settings, num_inputs, len(target_names), seed, dtype, transforms)
    output_transformed_targets(model)
    return model


def random_layers(model: nn.Module) -> bool:
    """Return whether a forward pass in training mode may draw random numbers; always True for a user's layers."""
    is_users = isinstance(model, NormalizedModel) and not isinstance(model.network, BlockNetwork)
    return is_users or any(isinstance(module, _DROPOUT) for module in model.modules())
