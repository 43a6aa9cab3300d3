"""From the section `model` to a network whose weights a seed fixes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from mpitrain.config.model import ModelSection, TargetTransform, find_model_problems, model_name, target_transforms
from mpitrain.config.yaml import show_value
from mpitrain.errors import ConfigError
from mpitrain.models.activations import LayerOptions
from mpitrain.models.batch_norm import use_virtual_batch_norm
from mpitrain.models.convolutional.cnn import CnnNetwork
from mpitrain.models.convolutional.unet import UNetNetwork
from mpitrain.models.files.record import remember_architecture
from mpitrain.models.icenet import IceNet
from mpitrain.models.mlp import MlpNetwork
from mpitrain.models.normalized import BlockNetwork, NormalizedModel
from mpitrain.models.output_transforms import OutputInverse, answer_as_learnt
from mpitrain.models.user_model import build_user_model

_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def build_model(
    settings: ModelSection, num_inputs: int, num_outputs: int, seed: int, dtype: torch.dtype = torch.float32,
    transforms: Sequence[TargetTransform | None] = (),
) -> nn.Module:  # fmt: skip
    """Return the network of `settings` for F `num_inputs` and O `num_outputs`, the same weights on all ranks.

    `transforms` (O,) are what is learnt of each output, if of any not the output itself. The caller's random state is
    left as it was. Raises ConfigError for settings that do not go together, and for a user's network that cannot be
    built.
    """
    for key, value, what in find_model_problems(settings):
        raise ConfigError(f"{key}={show_value(value)}: {what}")
    with torch.random.fork_rng(devices=[]):
        _seed(settings, seed)
        # Drawn as float32 for every dtype, so that float64 runs start from the same weights.
        model = _build(settings, num_inputs, num_outputs)
    model = use_virtual_batch_norm(model).to(dtype)
    if any(transforms) and isinstance(model, NormalizedModel):
        model.inverse = OutputInverse(transforms)
    remember_architecture(model, settings)
    return model


def build_learner(
    settings: ModelSection, num_inputs: int, target_names: Sequence[str], seed: int, dtype: torch.dtype
) -> nn.Module:
    """Return what `build_model` does for targets of these names, answering what is learnt, for a run to train."""
    by_name = target_transforms(settings)
    transforms = [by_name.get(name) for name in target_names]
    model = build_model(settings, num_inputs, len(target_names), seed, dtype, transforms)
    answer_as_learnt(model)
    return model


def random_layers(model: nn.Module) -> bool:
    """Whether a forward pass in training mode may draw random numbers; a user's network always may."""
    is_users = isinstance(model, NormalizedModel) and not isinstance(model.network, BlockNetwork)
    return is_users or any(isinstance(module, _DROPOUT) for module in model.modules())


def _seed(settings: ModelSection, seed: int) -> None:
    if ":" in model_name(settings):  # a user's own may draw on any device
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def _build(settings: ModelSection, num_inputs: int, num_outputs: int) -> nn.Module:
    name = model_name(settings)
    if name == "icenet":
        hidden, output = settings.hidden_activation or "none", settings.output_activation or "sigmoid"
        return IceNet(num_inputs, settings.hidden_size, num_outputs, hidden, output)
    return NormalizedModel(plain_network(settings, num_inputs, num_outputs), num_inputs, num_outputs)


def plain_network(settings: ModelSection, num_inputs: int, num_outputs: int) -> nn.Module:
    """Return the network alone, with torch's own batch norm and nothing that normalises inputs and targets."""
    name = model_name(settings)
    if ":" in name:
        return build_user_model(name, num_inputs, num_outputs).network
    hidden, output = settings.hidden_activation or "relu", settings.output_activation or "none"
    options = LayerOptions(
        hidden, output, settings.dropout, settings.batch_norm, settings.layer_norm, settings.residual,
        settings.kernel_size, settings.periodic,
    )  # fmt: skip
    if name == "mlp":
        return MlpNetwork([num_inputs, *[settings.hidden_size] * settings.hidden_layers, num_outputs], options)
    network = {"cnn": CnnNetwork, "unet": UNetNetwork}[name]
    return network(num_inputs, num_outputs, settings.hidden_size, settings.hidden_layers, options)
