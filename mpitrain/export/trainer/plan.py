"""Everything known about a training before it has samples: settings, network, initial weights, learning rates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpitrain.comm import Device
from mpitrain.comm.virtual_ranks import MOST_MICROBATCHES, microbatches_of
from mpitrain.config import NEWEST_RULES, OpenSettings, RunConfig, SampleCount, show_value
from mpitrain.data.dataset.split_rule import split_rule
from mpitrain.errors import ConfigError
from mpitrain.export.trainer.collection import CollectionSettings
from mpitrain.models import DenseModel, draw_dense_weights
from mpitrain.models.dense import build_dense
from mpitrain.train import EngineRequest, target_weights_of
from mpitrain.train.checkpoint.compatibility import checkpoint_settings, global_batch_size
from mpitrain.train.choose_engine import compiled_obstacle, dense_network_of
from mpitrain.train.compiled.build import DenseNetwork
from mpitrain.train.compiled.engine import statistics_of
from mpitrain.train.folder.settings import load_settings_to_read
from mpitrain.train.schedules.schedule import REFERENCE_BATCH_SIZE, learning_rates, scaled_learning_rate

# Wider layers need more memory on each rank than a model can spare for them.
LARGEST_TRAINER_WIDTH = 512


@dataclass(frozen=True)
class TrainerPlan:
    """The training of one network inside a model; `settings` are those that a checkpoint stores.

    `batch_size` 0: each step uses all samples. `target_weights` (O + 1,): the weight of each target, and their sum.
    """

    name: str
    config: RunConfig
    collection: CollectionSettings
    model: DenseModel
    network: DenseNetwork
    num_microbatches: int
    batch_size: int
    settings: dict[str, Any]
    rates: list[float]
    target_weights: Any
    split: tuple[float, float]


@dataclass(frozen=True)
class _ManyRanks:
    """Any number of ranks that sum in the fixed order."""

    world_size: int = 1
    reduction: str = "fixed"
    num_threads: int = 1


@dataclass(frozen=True)
class _Columns:
    input_names: tuple[str, ...]
    target_names: tuple[str, ...]


def plan_trainer(name: str, path: Path, collection: CollectionSettings, trust_code: bool = False) -> TrainerPlan:
    """Return the training that the settings file at `path` describes. Raises ConfigError."""
    given = load_settings_to_read(path, trust_code=trust_code).config.with_rules(NEWEST_RULES)
    given = given.with_split({"split": "random", "test_split": 0.0}).with_average(None)
    settings = _Settings(given, path).of(collection)
    config, columns = settings.config, _Columns(tuple(collection.names("input")), tuple(collection.names("target")))
    model = settings.build_model(columns)
    num_microbatches, batch_size = settings.num_microbatches, global_batch_size(config.training, 1)
    rule = split_rule(config.split_data)
    weights = target_weights_of(config.training, columns.target_names)
    return TrainerPlan(
        name, config, collection, model, dense_network_of(config.training, model), num_microbatches,
        0 if batch_size == "full" else int(batch_size),
        checkpoint_settings(
            config, _ManyRanks(), columns, num_microbatches, batch_size, "compiled",
            has_exact_batches=config.training.virtual_ranks is None,
        ),
        settings.rates(num_microbatches, batch_size), statistics_of(model, weights)[-model.num_outputs - 1 :],
        (rule.start, rule.stop),
    )  # fmt: skip


_DEFAULTS_OF_DATA: Mapping[str, object] = {
    "samples": "points", "split": "random", "streaming": False, "max_patterns": None, "thin_fraction": 1.0,
    "validation_path": None, "test_split": 0.0,
}  # fmt: skip
_DEFAULTS_OF_TRAINING: Mapping[str, object] = {
    "batch_size": None, "gradient_accumulation_steps": 1, "max_steps": None, "area_weighted_loss": False,
    "average": None,
}  # fmt: skip


@dataclass(frozen=True)
class _Settings:
    """The settings of the file at `path`."""

    config: RunConfig
    path: Path

    def of(self, collection: CollectionSettings) -> _Settings:
        """Return the settings for the collected file, all decided. Raises ConfigError if a trainer cannot use them."""
        config = (
            OpenSettings(self._with_names(collection).config).decide(SampleCount("points", collection.samples)).config
        )
        found = _Settings(config, self.path)
        obstacle = next(found._obstacles(), None)
        if obstacle is not None:
            raise ConfigError(f"{self.path}: {obstacle}; change it, or collect and run mpitrain train")
        return found

    @property
    def engine_request(self) -> EngineRequest:
        """The settings on which the choice of a step engine depends."""
        return EngineRequest(self.config.semantics, self.config.training, self.config.distributed)

    def build_model(self, columns: _Columns) -> DenseModel:
        """Return the network with its initial weights. Raises ConfigError if the compiled step cannot train it."""
        config, sizes = self.config, (len(columns.input_names), len(columns.target_names))
        model = build_dense(config.network, *sizes, np.dtype(config.training.dtype))
        reason: str | None = "is not a chain of dense layers"
        if model is not None:
            reason = compiled_obstacle(self.engine_request, Device("cpu"), model, 0)
            if max(model.chain.sizes) > LARGEST_TRAINER_WIDTH:
                reason = f"a layer is wider than {LARGEST_TRAINER_WIDTH}"
        if model is None or reason:
            raise ConfigError(
                f"{self.path}: model.name={config.network.name}: {reason}; a trainer uses the compiled step"
            )
        draw_dense_weights(model, config.seed)
        model.engine = "compiled"
        return model

    @property
    def num_microbatches(self) -> int:
        """Number of microbatches of a batch. Raises ConfigError if it is too large, or depends on the samples."""
        training, size = self.config.training, global_batch_size(self.config.training, 1)
        if training.virtual_ranks is None and size == "full":
            raise ConfigError(
                f"{self.path}: training.global_batch_size=full: its microbatches depend on the number of training "
                "samples, which is not known yet; give a number, or training.virtual_ranks=8 here and in mpitrain train"
            )
        number = training.virtual_ranks or microbatches_of(int(size), "points")
        if number > MOST_MICROBATCHES:
            raise ConfigError(f"{self.path}: {number} microbatches; a trainer has at most {MOST_MICROBATCHES}")
        return number

    def rates(self, num_microbatches: int, batch_size: int | str) -> list[float]:
        """Return the learning rate of each epoch."""
        training, rate = self.config.training, self.config.training.optimizer.learning_rate
        if training.learning_rate_scaling != "none":
            if batch_size == "full" or training.learning_rate_scaling_by == "world_size":
                raise ConfigError(
                    f"{self.path}: training.learning_rate_scaling: needs a batch size in a trainer; give the rate"
                )
            whole = -(-int(batch_size) // num_microbatches) * num_microbatches
            rate = scaled_learning_rate(rate, training.learning_rate_scaling, whole / REFERENCE_BATCH_SIZE)
        by_epoch = learning_rates(training.scheduler, rate, training.epochs)
        return [by_epoch(epoch, 0) for epoch in range(training.epochs)]

    def _with_names(self, collection: CollectionSettings) -> _Settings:
        config, tree = self.config, dict(self.config)
        variables = {
            "input_variables": [one.selection for one in collection.inputs],
            "output_variables": [one.selection for one in collection.targets],
        }
        for key, names in variables.items():
            given = getattr(config.variables, key)
            if given is not None and given != names:
                listed = " ".join(names)
                raise ConfigError(
                    f"{self.path}: variables.{key}: the collection has {listed}, in this order; give them"
                )
        tree["variables"] = type(config.variables)(**variables)
        if config.data.data_path is None:
            stated = {key: getattr(config.data, key) for key in config.data.model_fields_set}
            tree["data"] = type(config.data).model_validate({**stated, "data_path": collection.output})
        return _Settings(type(config).model_validate(tree), self.path)

    def _obstacles(self) -> Iterator[str]:
        """Yield the settings that a trainer does not support."""
        yield from self._of_network()
        for key, usual in _DEFAULTS_OF_DATA.items():
            if getattr(self.config.data, key) != usual:
                yield f"data.{key}: a trainer trains on all samples that it keeps, and splits them as data.split=random"
        if self.config.domain != type(self.config.domain)():
            yield "domain: a trainer trains on all samples that it keeps"
        for key, usual in _DEFAULTS_OF_TRAINING.items():
            if getattr(self.config.training, key) != usual:
                yield f"training.{key}: a trainer supports only {show_value(usual)}"
        yield from self._of_steps()

    def _of_network(self) -> Iterator[str]:
        request = self.engine_request
        if not request.may_need_no_torch(self.config.network):
            yield f"training.engine={request.engine}: a trainer uses the compiled step of semantics=standard"
        if self.config.network.transforms:
            yield "model.output_transforms: a trainer learns untransformed targets"
        if getattr(self.config.model, "batch_norm", False):
            yield "model.batch_norm=true: a trainer keeps no running statistics"

    def _of_steps(self) -> Iterator[str]:
        training = self.config.training
        if training.reduction == "any":
            yield "training.reduction=any: a trainer sums in the fixed order"
        if training.scheduler is not None and training.scheduler.plateau_patience is not None:
            yield "training.scheduler.type=plateau: a trainer's learning rates depend on the epoch only"
