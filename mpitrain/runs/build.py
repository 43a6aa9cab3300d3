"""The network of a run with its initial weights, which are the same on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpitrain.comm import Ranks, host_array
from mpitrain.config import RunConfig, show_value
from mpitrain.data import DataSummary
from mpitrain.data.dataset.dataset import Normalization
from mpitrain.data.open_dataset import DataRequest
from mpitrain.errors import ConfigError
from mpitrain.models import DenseModel, Network, draw_dense_weights
from mpitrain.models.dense import build_dense
from mpitrain.models.files.named_tensors import weights_sha256
from mpitrain.train import EngineRequest, named_weights

Models = dict[str, Any]
"""Networks of runs that have ended, by their settings, sizes and dtype."""


@dataclass(frozen=True)
class ModelRequest:
    """The settings that determine the initial weights; `network` is the section `model` with a null name resolved."""

    network: Network
    seed: int = 0
    dtype: str = "float32"
    semantics: str = "standard"

    @property
    def normalizes_outputs(self) -> bool:
        """Whether the model also normalises its outputs; the C++ program (`reference`) normalises inputs only."""
        return self.semantics == "standard" and self.network.normalizes_outputs


def data_request(config: RunConfig) -> DataRequest:
    """Return the settings of `config` that determine how samples are stored."""
    return DataRequest(config.split_data, config.training.dtype, config.semantics)


def model_request(config: RunConfig) -> ModelRequest:
    """Return the settings of `config` that determine the initial weights."""
    return ModelRequest(config.network, config.seed, config.training.dtype, config.semantics)


def engine_request(config: RunConfig) -> EngineRequest:
    """Return the settings of `config` on which the choice of a step engine depends."""
    return EngineRequest(config.semantics, config.training, config.distributed, config.compute.instruction_set)


def build_model(
    request: ModelRequest, summary: DataSummary, ranks: Ranks, ended: Models | None = None, with_torch: bool = True
) -> Any:
    """Return the network for the data of `summary`, on each rank's device, with the same weights. Collective.

    The network is a torch module if `with_torch`, otherwise a `DenseModel`. A network in `ended` is reused if its
    training left no other state in it; the returned network is stored in `ended`. Raises ConfigError on all ranks if
    the sizes in the settings do not match the data, or if the weights differ between ranks.
    """
    num_inputs, known = len(summary.input_names), {} if ended is None else ended
    if with_torch:
        model = ranks.on_all_ranks(lambda: _build(request, num_inputs, summary.target_names, known))
    else:
        plain = request.network, request.dtype, request.seed
        model = ranks.on_all_ranks(lambda: _build_dense(*plain, num_inputs, summary.target_names, known))
    hashes = ranks.gather_object(weights_sha256(named_weights(model)))
    different = [rank for rank, other in enumerate(hashes) if other != hashes[0]]
    if different:
        ranks.on_all_ranks(lambda: _refuse_different_weights(str(request.network.name), different))
    if with_torch:
        model = model.to(ranks.device)
    set_normalization(model, summary.normalization, request.normalizes_outputs)
    return model


def set_normalization(model: Any, normalization: Normalization, normalizes_outputs: bool) -> None:
    """Store mean and standard deviation of the inputs in the model, and of the targets if `normalizes_outputs`."""
    outputs = (normalization.output_mean, normalization.output_std) if normalizes_outputs else ()
    statistics = (normalization.mean, normalization.std, *outputs)
    if isinstance(model, DenseModel):
        model.set_normalization(*map(host_array, statistics))
        return
    import torch

    with torch.no_grad():
        model.set_normalization(*map(torch.as_tensor, statistics))


def _check_sizes(section: Network, num_inputs: int, num_outputs: int) -> None:
    for key, size, noun, count in (
        ("input_size", section.input_size, "input features", num_inputs),
        ("output_size", section.output_size, "targets", num_outputs),
    ):
        if size not in (None, count):
            raise ConfigError(f"model.{key}={size}: the data has {count} {noun}; remove the key or give {count}")


def _build_dense(
    network: Network, dtype: str, seed: int, num_inputs: int, target_names: Sequence[str], ended: Models
) -> DenseModel:
    for option, value, problem in network.problems():
        raise ConfigError(f"model.{option}={show_value(value)}: {problem}")
    _check_sizes(network, num_inputs, len(target_names))
    key = repr((network, num_inputs, target_names, dtype))
    model = ended.get(key)
    if not isinstance(model, DenseModel) or not may_be_reinitialised(model):
        transforms = [network.transforms.get(name) for name in target_names]
        model = build_dense(network, num_inputs, len(target_names), np.dtype(dtype), transforms)
        assert model is not None
    ended[key] = model
    draw_dense_weights(model, seed)
    return model


def may_be_reinitialised(model: Any) -> bool:
    """Return whether new initial weights and statistics make a trained network equal to a newly built one."""
    if isinstance(model, DenseModel):
        return not model.chain.has_batch_norm
    from mpitrain.models.first_weights import can_be_reinitialised

    return can_be_reinitialised(model)


def _build(request: ModelRequest, num_inputs: int, target_names: Sequence[str], ended: Models) -> Any:
    import torch

    from mpitrain.models.build import build_learner
    from mpitrain.models.files.initial_weights import load_initial_weights
    from mpitrain.models.first_weights import draw_initial_weights, has_own_initial_weights

    _check_sizes(request.network, num_inputs, len(target_names))
    dtype = getattr(torch, request.dtype)
    key = repr((request.network, num_inputs, target_names, dtype, request.normalizes_outputs))
    model = ended.get(key)
    if model is None or not may_be_reinitialised(model):
        model = build_learner(request.network, num_inputs, target_names, request.seed, dtype)
    ended[key] = model.train()
    if request.semantics == "standard" and has_own_initial_weights(model):
        draw_initial_weights(model, request.seed)
    if request.network.initial_weights is not None:
        load_initial_weights(model, Path(request.network.initial_weights))
    return model


def _refuse_different_weights(name: str, ranks: list[int]) -> None:
    raise ConfigError(
        f"model.name={name}: its parameters differ between ranks (rank {ranks[0]} from rank 0); draw them "
        "from torch's random state only, which is seeded before the model is built, and run the same code on all ranks"
    )
