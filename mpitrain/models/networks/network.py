"""What a network is to the rest of the package: its settings and what they say of it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from mpitrain.config import Count, TargetTransform
from mpitrain.config.component import Component
from mpitrain.config.model import Activation, OutputTransforms, Probability, transform_of
from mpitrain.config.section import Text
from mpitrain.errors import ConfigError

if TYPE_CHECKING:
    from mpitrain.models.activations import LayerOptions
    from mpitrain.models.dense import DenseChain
    from mpitrain.models.normalized import PhysicalModel

_BOUNDS = {"sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0), "relu": (0.0, math.inf)}


class Network(Component):
    """A network and its settings: the section `model`."""

    name_field = "name"
    is_code: ClassVar[bool] = False
    """Whether it is named code."""
    samples: ClassVar[Literal["points", "fields"] | None] = None
    """The kind of samples that it takes; None where both may serve."""
    has_names_of_cpp: ClassVar[bool] = False
    """Whether its parameters have the names of the C++ program's."""
    usual_output_activation: ClassVar[str] = "none"
    """What `output_activation: null` means."""

    name: str | None  # type: ignore[assignment]  # the base has a property
    """icenet, mlp, cnn, unet, or your own as package.module:callable; null means icenet if the only target is the
    ice concentration, without a transform, and there is one hidden layer; else mlp."""
    input_size: Count | None = None
    """Number of input features; null means as many as the data has."""
    output_size: Count | None = None
    """Number of output features; null means as many as the data has."""
    normalize_outputs: bool | None = None
    """Learn (y - mean) / std of the targets; model.pt answers in physical units. Null means true, but
    false for icenet and where output_activation is set."""
    initial_weights: Text | None = None
    """File whose weights the training starts from: NetCDF, or a model.pt; null draws them from the seed."""

    def resolved(self, target_names: Sequence[str] | None) -> Network:
        """Return the network with its name resolved for targets (None: the ice concentration), by their names."""
        return self

    @property
    def may_have_batch_norm(self) -> bool:
        """Whether the network has, or may have, batch norm."""
        return bool(getattr(self, "batch_norm", False))

    @property
    def begins_at_regression(self) -> bool:
        """Whether training begins at a linear regression of the training samples."""
        return False

    @property
    def normalizes_outputs(self) -> bool:
        """Whether the targets' mean and standard deviation go into the model, null resolved."""
        if self.normalize_outputs is not None:
            return self.normalize_outputs
        return self.output_bounds is None and getattr(self, "output_activation", None) in (None, "none")

    @property
    def output_bounds(self) -> tuple[float, float] | None:
        """The lowest and the highest answer that the function after the last layer allows; None where any is."""
        return _BOUNDS.get(getattr(self, "output_activation", None) or self.usual_output_activation)

    def fewest_numbers(self, num_inputs: int, num_outputs: int) -> int:
        """Return how many numbers the network for F `num_inputs` and O `num_outputs` holds at least."""
        return num_inputs + num_outputs

    def check_size(self, num_inputs: int, num_outputs: int) -> None:
        """Raise ConfigError where the network is larger than this machine's memory."""
        numbers = self.fewest_numbers(num_inputs, num_outputs)
        if 4 * numbers > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
            raise ConfigError(f"model: has at least {numbers:.2g} numbers, too many for this machine; give fewer units")

    @property
    def transforms(self) -> Mapping[str, TargetTransform]:
        """`output_transforms` by the targets' names."""
        given = getattr(self, "output_transforms", None) or {}
        return {name: transform_of(one) for name, one in given.items()}

    def chain(self, num_inputs: int, num_outputs: int) -> DenseChain | None:
        """Return the chain of dense layers that the network is, which needs no torch; None for every other network."""
        return None

    def problems(self) -> Iterator[tuple[str, object, str]]:
        """See `Component.problems`."""
        activation = getattr(self, "output_activation", None)
        if self.normalize_outputs and activation not in (None, "none"):
            what = f"not together with model.output_activation={activation}, which bounds what is learnt"
            yield "normalize_outputs", True, f"{what}; remove one of them"

    def build(self, num_inputs: int, num_outputs: int) -> PhysicalModel:
        """Return the network for F `num_inputs` and O `num_outputs`, from physical units to physical units.

        Its weights are drawn from torch's default generator. Raises ConfigError where it cannot be made.
        """
        raise NotImplementedError


class LayeredNetwork(Network):
    """A built-in network of hidden layers that are alike, between the normalisations of inputs and outputs."""

    noun: ClassVar[str]
    """What the network is, with its article."""
    unit: ClassVar[str] = "units"
    """What a layer consists of."""

    hidden_size: Count = 16
    """Number of hidden units of each layer; of cnn and unet: channels of the first."""
    hidden_layers: Annotated[Count, Field(le=1000)] = 1
    """Number of hidden layers; of unet: levels below the first."""
    hidden_activation: Activation | None = None
    """Function after each hidden layer; null means none for icenet, as in the C++ program, and relu for the others."""
    output_activation: Activation | None = None
    """Function after the last layer; null means sigmoid for icenet and none for the others."""
    dropout: Probability = 0.0
    """Probability with which a hidden unit (cnn, unet: a channel) is left out of a training step."""
    batch_norm: bool = False
    """Normalise each hidden layer over the batch: each virtual rank's microbatch by itself, or all with
    distributed.sync_batch_norm."""
    output_transforms: OutputTransforms | None = None
    """Learn log(y), logit(y) or a power of some targets, by their names: {precip: log, cover: logit, snow: {power:
    0.5}}. Statistics and losses are of what is learnt; model.pt has the inverse, and answers in physical units."""

    def fewest_numbers(self, num_inputs: int, num_outputs: int) -> int:
        """See `Network.fewest_numbers`."""
        return self.hidden_size * (num_inputs + num_outputs + (self.hidden_layers - 1) * self.hidden_size)

    def layer_options(self, **others: bool | int) -> LayerOptions:
        """Return what the layers share; `others` are options that not all networks have."""
        from mpitrain.models.activations import LayerOptions

        hidden, output = self.hidden_activation or "relu", self.output_activation or "none"
        return LayerOptions(hidden, output, self.dropout, self.batch_norm, **others)  # type: ignore[arg-type]

    def describe(self) -> str:
        """See `Component.describe`."""
        layers = f" of {self.hidden_layers} hidden layer{'s' * (self.hidden_layers > 1)}"
        activation = f", activation {self.hidden_activation}" if self.hidden_activation else ""
        extras = self.described_extras()
        more = f", with {' and '.join(extras)}" if extras else ""
        return f"{self.noun}{layers} with {self.hidden_size} {self.unit}{activation}{more}"

    def described_extras(self) -> list[str]:
        """Return the options that are in use, in words."""
        dropout = [f"dropout {self.dropout:g}"] if self.dropout else []
        return dropout + (["batch norm"] if self.batch_norm else [])
