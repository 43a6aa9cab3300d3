"""Defaults that depend on the number and the kind of samples: network, batch, learning rate, epochs, early stopping.

They apply only to settings that are not stated: a stated value, also null, is kept. For the ice concentration, and in
`reference` semantics, they do not apply: the defaults are those of the C++ program.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import attrgetter
from typing import Any

from pydantic import ValidationError

from mpitrain.config.model import NETWORKS, is_ice_concentration
from mpitrain.config.run import RunConfig
from mpitrain.config.section import stated_values
from mpitrain.config.yaml import render_yaml, show_value

_SMALLEST_BATCH, _LARGEST_BATCH = 8, 4096
_FEWEST_EPOCHS, _MOST_EPOCHS, _SHORTEST_PATIENCE = 4, 500, 10
# Networks of fields start from a linear regression, so that the best epoch is often an early one.
_LONGEST_PATIENCE_OF_FIELDS = 30


@dataclass(frozen=True)
class SampleCount:
    """The kind of the samples and their number, which determine the defaults."""

    kind: str
    """`points` or `fields`."""
    num_samples: int
    """Number of samples, held-out samples included."""
    grid: tuple[int, int] | None = None
    """Rows and columns of fields, if there are few enough for separate coefficients at each point; otherwise None."""


def settings_for(size: SampleCount) -> dict[str, Any]:
    """Return the defaults for these samples, by dotted key. A pure function: equal on all ranks."""
    if size.kind == "fields":
        grid = None if size.grid is None else list(size.grid)
        network = _network(2, 16) | {"model.grid": grid}
        training = _training(size.num_samples, 8, 4000 / size.num_samples, 0.002)
        patience = min(training["training.early_stopping_patience"], _LONGEST_PATIENCE_OF_FIELDS)
        return network | training | {"training.early_stopping_patience": patience}
    batch = max(32, 2 ** round(math.log2(math.sqrt(size.num_samples))))
    epochs = max(90 * (5000 / size.num_samples) ** 0.45, 1000 * batch / size.num_samples)
    rate = 0.002 if size.num_samples < 2000 else 0.005
    average = {"training.average": {"decay": 0.999}}
    return _network(4, 128) | {"model.residual": True} | average | _training(size.num_samples, batch, epochs, rate)


@dataclass(frozen=True)
class OpenSettings:
    """A configuration with open settings: those that it does not state and that depend on the samples (`keys`)."""

    config: RunConfig
    """The configuration; open settings have fixed defaults in it."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The dotted keys of the open settings; none for the ice concentration and in `reference` semantics."""
        targets = self.config.variables.output_variables
        is_ice = targets is None or (len(targets) == 1 and is_ice_concentration(targets[0]))
        if is_ice or self.config.semantics == "reference":
            return ()
        return tuple(key for key in (*self._of_network(), *self._of_training()) if not self._is_stated(key))

    def with_network(self) -> OpenSettings:
        """Return the settings with the first network for fields if the samples are fields and no network is named.

        Returns
        -------
        OpenSettings
            The settings themselves in all other cases, and if an option of another network is stated.
        """
        if "model.name" not in self.keys:
            return self
        accepts_fields = (
            name for name in NETWORKS.table if getattr(NETWORKS.component(name), "samples", None) == "fields"
        )
        try:
            return self.stating({"model.name": next(accepts_fields), "model.linear_part": True})
        except ValidationError:  # options of another network are stated: its name will be asked for
            return self

    def stating(self, values: Mapping[str, Any]) -> OpenSettings:
        """Return the validated settings with those of `values` stated that are open.

        Parameters
        ----------
        values : mapping
            Values by dotted key; keys that are not open are ignored.

        Returns
        -------
        OpenSettings
            The settings themselves if none of the keys is open.

        Raises
        ------
        pydantic.ValidationError
            The values are not allowed together with the stated settings.
        """
        missing = {key: value for key, value in values.items() if key in self.keys}
        tree = stated_values(self.config)
        for key, value in missing.items():
            *sections, name = key.split(".")
            reduce(lambda section, one: section.setdefault(one, {}), sections, tree)[name] = value
        return OpenSettings(RunConfig.model_validate(tree)) if missing else self

    def decide(self, size: SampleCount) -> Decided:
        """Return the settings with all open settings decided.

        Parameters
        ----------
        size : SampleCount
            The samples; the same on all ranks, so that all choose the same values.

        Returns
        -------
        Decided
            The configuration, and the chosen values by dotted key.
        """
        found = settings_for(size)
        values = {key: found[key] for key in self.keys if key in found}
        return Decided(self.stating(values).config, values, size)

    def render(self) -> str:
        """Return YAML that loads as an equal configuration.

        Returns
        -------
        str
            Open settings are left out and named in a comment.
        """
        comment = f"# set from the number of samples: {', '.join(self.keys)}\n" if self.keys else ""
        return comment + render_yaml(self.config, self.keys)

    def _of_network(self) -> Iterator[str]:
        model, is_field = self.config.model, self.config.data.samples == "fields"
        if model.name is None and is_field:
            yield "model.name"
            if model.output_activation in (None, "none"):
                yield "model.linear_part"
        if getattr(model, "linear_part", False):
            yield "model.grid"
        if not hasattr(model, "hidden_layers"):
            return
        yield from ("model.hidden_layers", "model.hidden_size", "model.hidden_activation")
        is_deep = not self._is_stated("model.hidden_layers") or model.hidden_layers > 1
        if hasattr(model, "residual") and not is_field and is_deep:
            yield "model.residual"

    def _of_training(self) -> Iterator[str]:
        training = self.config.training
        yield "training.epochs"
        # A stated number of accumulation steps must divide the batch, so the batch is not chosen here.
        if training.batch_size is None and training.gradient_accumulation_steps == 1:
            yield "training.global_batch_size"
        yield "training.scheduler"
        # With averaged weights the running statistics of batch norm would belong to other weights.
        if self.config.data.samples == "points" and not self.config.network.may_have_batch_norm:
            yield "training.average"
        # The patience also applies to the Jacobian criterion, where its default is one epoch.
        holds_out = self.config.validation_split > 0 or self.config.data.validation_path is not None
        if holds_out and training.jacobian_tolerance is None:
            yield "training.early_stopping_patience"
        # The default learning rate is for optimisers with moments of gradients, such as Adam.
        if hasattr(training.optimizer, "beta2") and training.learning_rate_scaling == "none":
            yield "training.optimizer.learning_rate"

    def _is_stated(self, key: str) -> bool:
        section, _, name = key.rpartition(".")
        values = attrgetter(section)(self.config)
        # A null name leaves the network open, whether it is written or not.
        return name in values.model_fields_set and not (key == "model.name" and values.name is None)


@dataclass(frozen=True)
class Decided:
    """A configuration without open settings, and the `values`, by dotted key, that were chosen for `size`."""

    config: RunConfig
    values: Mapping[str, Any]
    size: SampleCount

    @property
    def notices(self) -> list[str]:
        """A list with one line that shows the chosen values; empty if there are none."""
        if not self.values:
            return []
        shown = " ".join(f"{key}={_show(value)}" for key, value in self.values.items())
        return [f"defaults for {self.size.num_samples:,} {_NOUNS[self.size.kind]}: {shown}"]


_NOUNS = {"points": "samples", "fields": "fields"}


def _show(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {show_value(one)}" for key, one in value.items()) + "}"
    return show_value(value)


def _network(num_layers: int, width: int) -> dict[str, Any]:
    return {"model.hidden_layers": num_layers, "model.hidden_size": width, "model.hidden_activation": "silu"}


def _training(num_samples: int, batch: int, epochs: float, learning_rate: float) -> dict[str, Any]:
    num_epochs = min(max(round(epochs), _FEWEST_EPOCHS), _MOST_EPOCHS)
    size = min(max(batch, _SMALLEST_BATCH), _LARGEST_BATCH)
    return {
        "training.epochs": num_epochs,
        # A stated batch must not exceed the training samples; with null, missing samples have weight 0.
        "training.global_batch_size": size if num_samples >= 2 * size else None,
        "training.scheduler": {"type": "cosine"},
        "training.early_stopping_patience": max(num_epochs // 3, _SHORTEST_PATIENCE),
        "training.optimizer.learning_rate": learning_rate,
    }
