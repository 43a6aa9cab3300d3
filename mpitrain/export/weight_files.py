"""Writers of NetCDF weight files for community models: MOM6's `MOM_ANN` and the neural networks of CESM's PUMAS.

F  input features      O  outputs      I, J  inputs and outputs of a layer      b  samples

Both models read the weights only. Names, order and units of inputs and outputs are in attributes, which they ignore.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import netCDF4
import numpy as np
import numpy.typing as npt

from mpitrain.durable_files import replacing, sync_file
from mpitrain.errors import OutputError, UserError, writing
from mpitrain.export.request import ExportRequest, Say
from mpitrain.export.source.emulator import Variable
from mpitrain.export.sources import PortableRun, load_portable
from mpitrain.inference.portable import with_numpy
from mpitrain.inference.portable.network import DenseLayer
from mpitrain.version import __version__

Array = npt.NDArray[np.float64]
_MOST_LAYERS = {"mom6": 10, "pumas": 100}  # the number in a layer's name has one digit, or two
_ACTIVATIONS = {
    "mom6": {"relu": "relu", "none": "linear"},
    "pumas": {"none": "linear", "relu": "relu", "sigmoid": "sigmoid", "tanh": "tanh"},
}
_VALUES: Mapping[str, Callable[[Array], Array]] = {
    "linear": lambda z: z,
    "relu": lambda z: np.maximum(z, 0.0),
    "sigmoid": lambda z: 1.0 / (1.0 + np.exp(-z)),
    "tanh": np.tanh,
}
# Readers in MOM6 by name: the allowed numbers of inputs, and the number of outputs.
PROFILES: Mapping[str, tuple[Sequence[int], int]] = {"zanna-bolton": ((27,), 3), "meso-sfn": ((5, 45), 2)}
# MOM6 stops if its outputs for `x_test` differ from the file's `y_test` by more.
_TOLERANCE = 1e-5


@dataclass(frozen=True)
class _Chain:
    """Dense layers in float64, without norms, and statistics: x -> (x - mean) * (1 / std) -> layers -> y * std + mean.

    Means are 0 and standard deviations 1 if there is no normalisation.
    """

    layers: tuple[DenseLayer, ...]
    activations: tuple[str, ...]
    input_mean: Array
    input_std: Array
    output_mean: Array
    output_std: Array

    def answer(self, inputs: Array) -> Array:
        """Return the outputs (b, O) for inputs (b, F), summed in the readers' order: bias, then input by input."""
        values = (inputs - self.input_mean) * (1.0 / self.input_std)
        for layer, activation in zip(self.layers, self.activations, strict=True):
            sums = np.tile(layer.bias, (len(values), 1))
            for number, row in enumerate(layer.weight):
                sums += values[:, number : number + 1] * row
            values = _VALUES[activation](sums)
        return values * self.output_std + self.output_mean


def export_mom6(request: ExportRequest, say: Say) -> None:
    """Write the file that MOM6's `MOM_ANN` reads: weights, statistics, and an input with its expected outputs.

    MOM6 evaluates that input as a test. Raises as `run_export`.
    """
    found = load_portable(request, say)
    chain = _chain_of(found, request)
    wrong = next((one for one in chain.activations[:-1] if one != "relu"), None)
    if wrong is not None or chain.activations[-1] != "linear":
        raise UserError(
            f"{request.run}: MOM6 computes relu after every layer but the last, and no activation there; this network "
            f"has {', '.join(chain.activations)}; train with model.hidden_activation=relu model.output_activation=none"
        )
    _check_profile(request, chain)
    sizes = [len(chain.layers[0].weight), *(len(layer.bias) for layer in chain.layers)]
    variables: dict[str, tuple[tuple[str, ...], Any]] = {
        "num_layers": ((), np.int32(len(sizes))), "layer_sizes": (("layer",), np.array(sizes, np.int32)),
    }  # fmt: skip
    for number, layer in enumerate(chain.layers):
        variables[f"A{number}"] = (f"nodes{number}", f"nodes{number + 1}"), layer.weight
        variables[f"b{number}"] = (f"nodes{number + 1}",), layer.bias
    first, last = "nodes0", f"nodes{len(chain.layers)}"
    variables |= {"input_means": ((first,), chain.input_mean), "input_norms": ((first,), chain.input_std)}
    variables |= {"output_means": ((last,), chain.output_mean), "output_norms": ((last,), chain.output_std)}
    _write(request, say, found, chain, variables, (first, last), {})


def export_pumas(request: ExportRequest, say: Say) -> None:
    """Write the file that PUMAS's `module_neural_net` reads: layers by name, with the statistics folded into them.

    Raises as `run_export`.
    """
    found = load_portable(request, say)
    chain = _folded(_chain_of(found, request))
    names = [f"dense_{number:02d}" for number in range(len(chain.layers))]
    letters = np.array([list(name) for name in names], "S1")
    variables: dict[str, tuple[tuple[str, ...], Any]] = {"layer_names": (("num_layers", "name_length"), letters)}
    for name, layer in zip(names, chain.layers, strict=True):
        variables[f"{name}_weights"] = (f"{name}_in", f"{name}_out"), layer.weight
        variables[f"{name}_bias"] = (f"{name}_out",), layer.bias
    attributes = {f"{name}_weights": {"activation": one} for name, one in zip(names, chain.activations, strict=True)}
    _write(request, say, found, chain, variables, (f"{names[0]}_in", f"{names[-1]}_out"), attributes)


def _chain_of(found: PortableRun, request: ExportRequest) -> _Chain:
    """Return the chain, with each layer without activation merged into the next one.

    Raises UserError if the format cannot represent the network.
    """
    (network, *others), name = found.networks, request.format
    if others:
        raise UserError(f"{request.run}: --format {name} holds one network; give the folder of one member")
    if network.has_norms or any(layer.is_residual for layer in network.layers):
        raise UserError(
            f"{request.run}: --format {name} supports no layer norm and no residual connections; train without them"
        )
    layers: list[DenseLayer] = []
    for one in network.layers:
        layer = replace(one, weight=one.weight.astype(np.float64), bias=one.bias.astype(np.float64))
        if layers and layers[-1].activation == "none":
            before = layers.pop()
            layer = replace(layer, weight=before.weight @ layer.weight, bias=before.bias @ layer.weight + layer.bias)
        layers.append(layer)
    if len(layers) > _MOST_LAYERS[name]:
        raise UserError(
            f"{request.run}: --format {name} allows {_MOST_LAYERS[name]} layers; this network has {len(layers)}"
        )
    known = _ACTIVATIONS[name]
    wrong = next((layer.activation for layer in layers if layer.activation not in known), None)
    if wrong is not None:
        raise UserError(
            f"{request.run}: --format {name} supports no {wrong}: its reader would compute another activation; train "
            f"with {' or '.join(one for one in known if one != 'none')}"
        )
    neutral = np.zeros(network.sizes[-1]), np.ones(network.sizes[-1])
    of_outputs = neutral if network.output_mean is None else (network.output_mean, network.output_std)
    statistics = (np.asarray(one, np.float64) for one in (network.input_mean, network.input_std, *of_outputs))
    return _Chain(tuple(layers), tuple(known[layer.activation] for layer in layers), *statistics)


def _folded(chain: _Chain) -> _Chain:
    """Return the chain with the statistics folded into its first and last layers."""
    layers = list(chain.layers)  # an output activation excludes output statistics, so this is exact
    weight = layers[0].weight / chain.input_std[:, None]
    layers[0] = replace(layers[0], weight=weight, bias=layers[0].bias - chain.input_mean @ weight)
    last = layers[-1]
    bias = last.bias * chain.output_std + chain.output_mean
    layers[-1] = replace(last, weight=last.weight * chain.output_std, bias=bias)
    zeros = [np.zeros_like(one) for one in (chain.input_mean, chain.output_mean)]
    return _Chain(tuple(layers), chain.activations, zeros[0], zeros[0] + 1, zeros[1], zeros[1] + 1)


def _check_profile(request: ExportRequest, chain: _Chain) -> None:
    if not request.profile:
        return
    if request.profile not in PROFILES:
        raise UserError(f"--profile {request.profile}: give one of {', '.join(PROFILES)}")
    numbers, num_outputs = PROFILES[request.profile]
    has = len(chain.layers[0].weight), len(chain.layers[-1].bias)
    if has[0] not in numbers or has[1] != num_outputs:
        raise UserError(
            f"--profile {request.profile}: reads {' or '.join(map(str, numbers))} inputs and {num_outputs} outputs; "
            f"this network has {has[0]} and {has[1]}"
        )


def _write(
    request: ExportRequest, say: Say, found: PortableRun, chain: _Chain,
    variables: Mapping[str, tuple[tuple[str, ...], Any]], ends: tuple[str, str],
    attributes: Mapping[str, Mapping[str, str]],
) -> None:  # fmt: skip
    """Write the variables (dimensions and values by name) and a test (`x_test`, `y_test`); compare with predictions."""
    compared, path = _compared(request, found, chain), found.wanted.first.run.record
    record = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    probe = _probe(found.inputs, chain)
    answers = {"x_test": ((ends[0],), probe), "y_test": ((ends[1],), chain.answer(probe[None])[0])}
    advice, refusals = "check the folder, its permissions and space", (OSError, RuntimeError)
    with writing(request.output_file, advice, refusals), replacing(request.output_file) as temporary:
        with netCDF4.Dataset(str(temporary), "w") as file:
            file.setncatts(_described(found, request))
            for name, (dimensions, values) in {**variables, **answers}.items():
                for dimension, size in zip(dimensions, np.shape(values), strict=True):
                    if dimension not in file.dimensions:
                        file.createDimension(dimension, size)
                variable = file.createVariable(name, values.dtype, dimensions)
                variable[...] = values
                variable.setncatts(attributes.get(name, {}))
            file.setncatts({"run_record": record} if record else {})  # written last because it may be long
        sync_file(temporary)
    say(f"{request.output_file}: {found.wanted.origin}")
    say(compared)


def _probe(inputs: Sequence[Variable], chain: _Chain) -> Array:
    """Return an input (F,) within the ranges of the training data, drawn with a fixed seed.

    Its outputs are not all 0, if that holds for one of 64 drawn inputs.
    """
    random = np.random.default_rng(0)
    low, high = (np.array([getattr(one, key) for one in inputs]) for key in ("minimum", "maximum"))
    drawn = [random.uniform(low, high) for _ in range(64)]
    return next((one for one in drawn if np.abs(chain.answer(one[None])).max() > 0), drawn[0])


def _described(found: PortableRun, request: ExportRequest) -> dict[str, Any]:
    """Return the file's global attributes: names, units and ranges of the variables in order, and their origin."""
    description: dict[str, Any] = {
        "title": f"Network for {request.profile or request.format}, written by mpitrain {__version__}",
        "source": found.wanted.origin,
        "evaluation": "y = layers((x - mean) / std) * std + mean, in the order of the names",
    }
    for end, variables in (("input", found.inputs), ("output", found.outputs)):
        description[f"{end}_names"] = json.dumps([one.whole or one.name for one in variables])
        description[f"{end}_units"] = json.dumps([one.units for one in variables])
        description[f"{end}_ranges"] = json.dumps([[one.minimum, one.maximum] for one in variables])
    return description


def _compared(request: ExportRequest, found: PortableRun, chain: _Chain) -> str:
    """Return how far the reader's outputs are from the predictions. Raises OutputError if they are too far."""
    samples = found.wanted.samples
    expected = with_numpy.forward(found.networks[0], samples).outputs.astype(np.float64)
    largest = np.abs(expected).max(axis=0)
    errors = np.abs(chain.answer(samples.astype(np.float64)) - expected).max(axis=0)
    difference = float((errors / np.where(largest > 0, largest, 1.0)).max())
    if not difference <= _TOLERANCE:
        raise OutputError(
            f"{request.output_file}: its reader, in double precision, computes other outputs than predict (by "
            f"{difference:.1g} of the largest); train with training.dtype=float64, or with inputs in other units"
        )
    return (
        f"checked: computed as by its reader, the outputs for {found.wanted.what} agree with predict to "
        f"{difference:.1g}"
    )
