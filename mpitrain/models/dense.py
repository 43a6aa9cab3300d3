"""Chains of dense layers as numpy arrays, which compiled runs train, store and predict with. Needs no torch.

F  input features      H  hidden units      O  outputs
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.config import TargetTransform
from mpitrain.data.random_streams import Stream, keyed_normal, keyed_uniform

Array = npt.NDArray[Any]
_XAVIER_NORMAL = ("fc1.weight", "fc2.weight")  # of IceNet, as in the C++ program


@dataclass(frozen=True)
class DenseChain:
    """Linear layers of `sizes` F, H, ..., O; activations by their names in the configuration.

    The model's parameters are each layer's weight (out, in) and bias (out,), layer by layer; with batch norm or layer
    norm, also the scale and offset (out,) of each hidden layer. `dropout` is the probability that a hidden unit is
    dropped. `is_residual`: each hidden layer after the first adds its inputs to its outputs.
    """

    sizes: tuple[int, ...]
    hidden_activation: str
    output_activation: str
    dropout: float = 0.0
    has_batch_norm: bool = False
    has_layer_norm: bool = False
    is_residual: bool = False

    @property
    def num_layers(self) -> int:
        """The number of linear layers."""
        return len(self.sizes) - 1


class NetworkNumbers:
    """Parameters and buffers, including the statistics of the data, with torch's names and in torch's order."""

    parameters: dict[str, Array]
    buffers: dict[str, Array]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the parameters."""
        return self.buffers["input_mean"].dtype

    def named_parameters(self) -> Iterator[tuple[str, Array]]:
        """Yield name and array of each parameter."""
        yield from self.parameters.items()

    def named_buffers(self) -> Iterator[tuple[str, Array]]:
        """Yield name and array of each buffer: statistics of the data, running statistics of batch norm."""
        yield from self.buffers.items()


@dataclass
class DenseModel(NetworkNumbers):
    """IceNet or an mlp as numpy arrays: parameters and buffers with torch's names and in torch's order.

    Training changes the arrays in place. Needs no torch.

    Attributes
    ----------
    chain : DenseChain
        The numbers of units F, H, ..., O, the activations and the options of the layers.
    is_icenet : bool
        Whether the names are those of the C++ program (`fc1.weight`), otherwise those of the mlp
        (`network.layers.0.linear.weight`).
    parameters : dict of str to ndarray of float32 or float64
        Weight (out, in) and bias (out,) of each layer; with batch norm or layer norm also scale and offset (H,) of each
        hidden layer.
    buffers : dict of str to ndarray
        `input_mean` and `input_std` (F,), for an mlp also `output_mean` and `output_std` (O,). With batch norm also
        `running_mean` and `running_var` (H,) of each hidden layer, and `num_batches_tracked` (), int64.
    settings : Network or None
        The section `model` from which it was built, with `initial_weights` and `output_transforms` null, if known.
    transforms : sequence of TargetTransform or None, length O
        The transform of each target, None for no transform; () if no target is transformed.
    engine : str or None
        The engine that trains it, None if unknown.
    """

    chain: DenseChain
    is_icenet: bool
    parameters: dict[str, Array]
    buffers: dict[str, Array]
    settings: Any = None
    transforms: Sequence[TargetTransform | None] = ()
    engine: str | None = None
    _order: Sequence[str] = field(default=(), repr=False)

    @property
    def num_inputs(self) -> int:
        """The number of inputs F."""
        return self.chain.sizes[0]

    @property
    def num_outputs(self) -> int:
        """The number of outputs O."""
        return self.chain.sizes[-1]

    @property
    def norm_sizes(self) -> tuple[int, ...]:
        """The number of units of each hidden layer that has batch norm."""
        return self.chain.sizes[1:-1] if self.chain.has_batch_norm else ()

    def state_dict(self) -> dict[str, Array]:
        """Return parameters and buffers by name, in torch's order.

        Returns
        -------
        dict of str to ndarray
            The arrays themselves, not copies.
        """
        both = {**self.parameters, **self.buffers}
        return {name: both[name] for name in self._order}

    def get_buffer(self, name: str) -> Array:
        """Return the buffer of this name.

        Parameters
        ----------
        name : str
            A key of `buffers`.

        Returns
        -------
        ndarray
            The array itself, not a copy.
        """
        return self.buffers[name]

    def set_normalization(
        self, input_mean: Array, input_std: Array, output_mean: Array | None = None, output_std: Array | None = None
    ) -> None:
        """Copy the statistics of inputs and outputs into the buffers, converted to their dtype.

        Parameters
        ----------
        input_mean, input_std : ndarray, shape (F,)
            In physical units. No standard deviation may be 0.
        output_mean, output_std : ndarray, shape (O,), optional
            In units of the transformed targets. None, or a buffer that the network lacks (IceNet), is skipped.
        """
        given = {"input_mean": input_mean, "input_std": input_std, "output_mean": output_mean, "output_std": output_std}
        for name, values in given.items():
            if values is not None and name in self.buffers:
                self.buffers[name][...] = values


def build_dense(
    settings: Any, num_inputs: int, num_outputs: int, dtype: npt.DTypeLike,
    transforms: Sequence[TargetTransform | None] = (),
) -> DenseModel | None:  # fmt: skip
    """Return the network of `settings`, the section `model`, with zero weights; None if it is no chain of dense layers.

    Raises ConfigError if it does not fit into memory.
    """
    settings = settings.resolved(None)
    settings.check_size(num_inputs, num_outputs)
    chain = settings.chain(num_inputs, num_outputs)
    if chain is None:
        return None
    model = empty_dense(chain, settings.has_cpp_names, dtype)
    model.settings, model.transforms = architecture(settings), tuple(transforms) if any(transforms) else ()
    return model


def architecture(settings: Any) -> Any:
    """Return the section `model` as files store it: without the path of initial weights and the names of targets."""
    others = {"output_transforms": None} if "output_transforms" in type(settings).model_fields else {}
    return settings.model_copy(update={"initial_weights": None, **others})


def empty_dense(chain: DenseChain, is_icenet: bool, dtype: npt.DTypeLike) -> DenseModel:
    """Return the network of `chain` with zero weights, norm scales of 1, means of 0 and standard deviations of 1."""
    shapes = dict(_icenet_shapes(chain) if is_icenet else _mlp_shapes(chain))
    parameters: dict[str, Array] = {}
    buffers: dict[str, Array] = {}
    for key, shape in shapes.items():
        is_buffer = key.rpartition(".")[2] in _BUFFERS
        target = buffers if is_buffer else parameters
        is_one = key.endswith(("_std", "running_var", ".norm.weight"))
        kind = np.int64 if key.endswith("num_batches_tracked") else dtype
        target[key] = np.ones(shape, kind) if is_one else np.zeros(shape, kind)
    return DenseModel(chain, is_icenet, parameters, buffers, _order=tuple(shapes))


_BUFFERS = (
    "input_mean", "input_std", "output_mean", "output_std", "running_mean", "running_var", "num_batches_tracked",
)  # fmt: skip
Shapes = Iterator[tuple[str, tuple[int, ...]]]


def _icenet_shapes(chain: DenseChain) -> Shapes:
    yield from ((name, (chain.sizes[0],)) for name in ("input_mean", "input_std"))
    for number, (inputs, outputs) in enumerate(itertools.pairwise(chain.sizes), 1):
        yield f"fc{number}.weight", (outputs, inputs)
        yield f"fc{number}.bias", (outputs,)


def _mlp_shapes(chain: DenseChain) -> Shapes:
    yield from ((name, (chain.sizes[0],)) for name in ("input_mean", "input_std"))
    yield from ((name, (chain.sizes[-1],)) for name in ("output_mean", "output_std"))
    for number, (inputs, outputs) in enumerate(itertools.pairwise(chain.sizes)):
        layer, is_hidden = f"network.layers.{number}", number < chain.num_layers - 1
        yield f"{layer}.linear.weight", (outputs, inputs)
        yield f"{layer}.linear.bias", (outputs,)
        if is_hidden and (chain.has_batch_norm or chain.has_layer_norm):
            yield from ((f"{layer}.norm.{name}", (outputs,)) for name in ("weight", "bias"))
        if is_hidden and chain.has_batch_norm:
            yield from ((f"{layer}.norm.{name}", (outputs,)) for name in ("running_mean", "running_var"))
            yield f"{layer}.norm.num_batches_tracked", ()


def draw_dense_weights(model: DenseModel, seed: int) -> None:
    """Set the initial weights in place, bit for bit as `draw_initial_weights` does for torch's module.

    Norm scales are reset to 1 and norm offsets to 0, also in a trained model. Buffers are not changed.

    Parameters
    ----------
    model : DenseModel
        The network; all its parameters are overwritten.
    seed : int
        The same seed gives the same bits on every machine.

    Notes
    -----
    Not collective. Parameter n in the order of `model.parameters` depends only on (seed, n) and its shape. Weights and
    biases are uniform on [-1, 1) / sqrt(fan in), the bounds of torch's layers (He et al., 2015). The weights of IceNet
    are normal with variance 2 / (fan in + fan out) (Glorot and Bengio, 2010). The numbers are drawn in float64 and
    rounded to float32 for every dtype, so that float64 runs start from the same weights.
    """
    fan_in = 0
    for number, (name, parameter) in enumerate(model.parameters.items()):
        if ".norm." in name:
            parameter[...] = 1.0 if name.endswith(".weight") else 0.0
            continue
        fan_in = parameter.shape[1] if name.endswith("weight") else fan_in
        is_xavier = model.is_icenet and name in _XAVIER_NORMAL
        parameter[...] = initial_weights_of(seed, number, parameter.shape, fan_in, is_xavier)


def initial_weights_of(seed: int, number: int, shape: Sequence[int], fan_in: int, is_xavier: bool) -> Array:
    """Return the initial weights of parameter `number` as float32; they depend only on (seed, number) and the shape.

    Uniform within 1 / sqrt(fan in) of 0 (He et al., 2015, with the bounds of torch's layers); with `is_xavier` normal
    with variance 2 / (fan in + fan out) (Glorot and Bengio, 2010). Drawn in float64 and rounded to float32 for every
    dtype, so that float64 runs start from the same weights.
    """
    keys, count = (seed, Stream.FIRST_WEIGHTS, number), math.prod(shape)
    if is_xavier:
        values = keyed_normal(keys, count) * math.sqrt(2 / sum(shape))
    else:
        values = (2 * keyed_uniform(keys, count) - 1) / math.sqrt(fan_in)
    return values.astype(np.float32).reshape(tuple(shape))
