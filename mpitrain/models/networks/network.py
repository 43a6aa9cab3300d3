"""Base classes of the networks' settings, and the properties of a network that follow from its settings."""

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
    """Base class of networks and their settings: the section `model`.

    A subclass defines its options as fields, its `name`, and `build`. Only `build` imports torch.
    """

    name_field = "name"
    is_code: ClassVar[bool] = False
    """Whether the network is named code, `package.module:callable`."""
    samples: ClassVar[Literal["points", "fields"] | None] = None
    """The kind of samples that the network accepts; None if it may accept both."""
    has_cpp_names: ClassVar[bool] = False
    """Whether its parameters have the names used by the C++ program."""
    default_output_activation: ClassVar[str] = "none"
    """The activation that `output_activation: null` means."""

    name: str | None  # type: ignore[assignment]  # the base has a property
    """icenet, mlp, cnn, unet, or your own as package.module:callable; null means icenet if the only target is the
    ice concentration, without a transform, and there is one hidden layer; otherwise mlp."""
    input_size: Count | None = None
    """Number of input features; null means as many as the data has."""
    output_size: Count | None = None
    """Number of output features; null means as many as the data has."""
    normalize_outputs: bool | None = None
    """Train on (y - mean) / std of the targets; model.pt returns physical units. Null means true, but false
    for icenet and if output_activation is set."""
    initial_weights: Text | None = None
    """File of the initial weights: NetCDF, or a model.pt; null draws them from the seed."""

    def resolved(self, target_names: Sequence[str] | None) -> Network:
        """Return the network with its name resolved.

        Parameters
        ----------
        target_names : sequence of str or None
            Names of the targets; None means the ice concentration.

        Returns
        -------
        Network
            The network itself unless `name` is null.

        Raises
        ------
        PydanticCustomError
            `name` is null, and the resolved network does not have one of the given options.
        """
        return self

    @property
    def may_have_batch_norm(self) -> bool:
        """Whether the network has, or may have, batch norm."""
        return bool(getattr(self, "batch_norm", False))

    @property
    def starts_from_regression(self) -> bool:
        """Whether training starts from a linear regression of the training samples."""
        return False

    @property
    def normalizes_outputs(self) -> bool:
        """Whether the model includes the targets' mean and standard deviation: `normalize_outputs`, null resolved."""
        if self.normalize_outputs is not None:
            return self.normalize_outputs
        return self.output_bounds is None and getattr(self, "output_activation", None) in (None, "none")

    @property
    def output_bounds(self) -> tuple[float, float] | None:
        """The bounds of the function after the last layer, for sigmoid, tanh and relu; None for the others."""
        return _BOUNDS.get(getattr(self, "output_activation", None) or self.default_output_activation)

    def min_numbers(self, num_inputs: int, num_outputs: int) -> int:
        """Return a lower bound of the number of weights and statistics.

        Parameters
        ----------
        num_inputs, num_outputs : int
            Numbers of inputs F and outputs O.

        Returns
        -------
        int
            Compared with the machine's memory, and with the tensors in a file, before a network is built.
        """
        return num_inputs + num_outputs

    def check_size(self, num_inputs: int, num_outputs: int) -> None:
        """Raise ConfigError if the network is larger than this machine's memory.

        Parameters
        ----------
        num_inputs, num_outputs : int
            Numbers of inputs F and outputs O.

        Raises
        ------
        ConfigError
            `min_numbers` numbers of 4 bytes exceed the physical memory. Raised on this rank only.
        """
        numbers = self.min_numbers(num_inputs, num_outputs)
        if 4 * numbers > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
            raise ConfigError(
                f"model: has at least {numbers:.2g} numbers, too many for this machine's memory; give fewer units"
            )

    @property
    def transforms(self) -> Mapping[str, TargetTransform]:
        """`output_transforms` by the targets' names."""
        given = getattr(self, "output_transforms", None) or {}
        return {name: transform_of(one) for name, one in given.items()}

    def chain(self, num_inputs: int, num_outputs: int) -> DenseChain | None:
        """Return the description of the network as a chain of dense layers. Needs no torch.

        Parameters
        ----------
        num_inputs, num_outputs : int
            Numbers of inputs F and outputs O.

        Returns
        -------
        DenseChain or None
            None if the network is not a chain of dense layers. Only chains can be trained without torch.
        """
        return None

    def problems(self) -> Iterator[tuple[str, object, str]]:
        """See `Component.problems`."""
        activation = getattr(self, "output_activation", None)
        if self.normalize_outputs and activation not in (None, "none"):
            reason = f"not together with model.output_activation={activation}, which limits the range of the outputs"
            yield "normalize_outputs", True, f"{reason}; remove one of them"

    def build(self, num_inputs: int, num_outputs: int) -> PhysicalModel:
        """Return the network as a torch module, from physical units to physical units.

        Parameters
        ----------
        num_inputs, num_outputs : int
            Numbers of inputs F and outputs O.

        Returns
        -------
        PhysicalModel
            Maps (b, F) to (b, O), or fields (b, F, H, W) to (b, O, H, W); its statistics are means of 0 and standard
            deviations of 1. A user's subclass may return any torch.nn.Module on normalised values: it is wrapped in a
            `NormalizedModel`.

        Raises
        ------
        ConfigError
            Named code cannot be imported or fails. Raised on this rank only.

        Notes
        -----
        Not collective. The weights must be drawn from torch's default generator only; the caller seeds it with the same
        seed on all ranks. In `standard` semantics `draw_initial_weights` then sets the weights of built-in networks.
        """
        raise NotImplementedError


class LayeredNetwork(Network):
    """Base class of built-in networks: equal hidden layers between the normalisation of inputs and that of outputs."""

    noun: ClassVar[str]
    """The kind of network, with its article."""
    unit: ClassVar[str] = "units"
    """The name of a layer's elements."""

    hidden_size: Count = 16
    """Number of units of each hidden layer; for cnn and unet, number of channels of the first layer."""
    hidden_layers: Annotated[Count, Field(le=1000)] = 1
    """Number of hidden layers; for unet, number of levels below the first."""
    hidden_activation: Activation | None = None
    """Function after each hidden layer; null means none for icenet, as in the C++ program, and relu for the others."""
    output_activation: Activation | None = None
    """Function after the last layer; null means sigmoid for icenet and none for the others."""
    dropout: Probability = 0.0
    """Probability that a hidden unit (cnn, unet: a channel) is dropped in a training step."""
    batch_norm: bool = False
    """Batch norm of each hidden layer, over each virtual rank's microbatch, or over the whole batch with
    distributed.sync_batch_norm."""
    output_transforms: OutputTransforms | None = None
    """Train on log(y), logit(y) or a power of the named targets: {precip: log, cover: logit, snow: {power: 0.5}}.
    Statistics and losses are those of the transformed targets; model.pt includes the inverse and returns physical
    units."""

    def min_numbers(self, num_inputs: int, num_outputs: int) -> int:
        """See `Network.min_numbers`."""
        return self.hidden_size * (num_inputs + num_outputs + (self.hidden_layers - 1) * self.hidden_size)

    def layer_options(self, **others: bool | int) -> LayerOptions:
        """Return the options that all layers share, with null activations resolved.

        Parameters
        ----------
        **others : bool or int
            Options that only some networks have: `layer_norm`, `residual`, `kernel_size`, `periodic`.

        Returns
        -------
        LayerOptions
            `hidden_activation` null becomes relu, `output_activation` null becomes none.
        """
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
        """Return short descriptions of the options that are in use, such as "dropout 0.1".

        Returns
        -------
        list of str
            Empty if none is in use; part of the text of `describe`.
        """
        dropout = [f"dropout {self.dropout:g}"] if self.dropout else []
        return dropout + (["batch norm"] if self.batch_norm else [])
