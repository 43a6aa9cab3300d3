"""What a source file is made of: networks, what their numbers mean, and samples with the answers that are expected.

K  samples      F  input features      O  outputs      M  networks of an ensemble
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mpitrain.errors import UserError
from mpitrain.inference.portable import with_numpy
from mpitrain.inference.portable.network import Array, PortableNetwork

# Mistakes of units that are told from others: what is given of the right value, as factor and summand.
CONVERSIONS = (
    (1.0, 273.15), (1.0, -273.15), (1.8, 32.0), (1000.0, 0.0), (0.001, 0.0), (100.0, 0.0), (0.01, 0.0), (-1.0, 0.0),
    (0.5144444444, 0.0), (1.9438444924, 0.0), (57.295779513, 0.0), (0.01745329252, 0.0),
)  # fmt: skip
_NUM_CANDIDATES = 64
_CUT = ".."
_MOST_BYTES = 60  # of a name or unit: with quotes doubled it must fit into one line of Fortran
# What the sources' own names, or a language's, would collide with.
_TAKEN = (
    "forward tangent_linear adjoint jacobian check_layout check_arithmetic describe probe tile normalise slopes_one "
    "slopes_tile num_inputs num_outputs num_members inputs_first samples_first wp ip detail driver std real double "
    "float int char long short class struct union enum namespace template typename inline static const volatile "
    "default switch case for while do if else return void auto bool operator new delete this public private "
    "using true false try catch throw not and or xor main"
)


@dataclass(frozen=True)
class Variable:
    """An input or output: its name and units in the training data, and its statistics there.

    `name` may be cut; it is then `whole` that tells which variable it is a level of.
    """

    name: str
    units: str
    minimum: float
    maximum: float
    mean: float
    std: float
    whole: str = ""


@dataclass(frozen=True)
class Expected:
    """Samples of the training data and the answers to them: the self-test's numbers, bit for bit.

    `perturbations` (K, F) and `sensitivities` (K, O) are those of tangent linear and adjoint. The spreads (K, O) and
    (K, O, F) are those of an ensemble.
    """

    inputs: Array
    outputs: Array
    jacobian: Array
    perturbations: Array
    tangent: Array
    sensitivities: Array
    adjoint: Array
    output_spread: Array | None
    jacobian_spread: Array | None


@dataclass(frozen=True)
class Emulator:
    """Everything that the text of the sources depends on.

    `name` begins all names in C, and is the module or namespace in Fortran and C++. `origin` is told in a comment.
    `probe` (F,) is the sample that `check_layout` knows, `tolerance` (F,) how near a value must be to it. In Fortran
    what takes one sample may be called in kernels of a GPU if it `is_gpu_callable`.
    """

    name: str
    networks: tuple[PortableNetwork, ...]
    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    origin: tuple[str, ...]
    expected: Expected
    probe: Array
    tolerance: Array
    is_gpu_callable: bool = False

    @property
    def network(self) -> PortableNetwork:
        """The first network, whose architecture is that of all."""
        return self.networks[0]

    @property
    def is_ensemble(self) -> bool:
        """Whether means and spreads are what is asked for."""
        return len(self.networks) > 1

    @property
    def expected_of_probe(self) -> tuple[Array, Array]:
        """The outputs (O,) and derivatives (O, F) at the probe: what `check_arithmetic` compares."""
        found = _expected(self.networks, self.probe[None])
        return found.outputs[0], found.jacobian[0].ravel()

    @property
    def input_unlike_first(self) -> int:
        """The number from 0 of an input whose value in the probe is not the first one's; 0: there is none."""
        differs = np.abs(self.probe - self.probe[0]) > 2 * (self.tolerance + self.tolerance[0])
        return int(np.flatnonzero(differs)[0]) if differs.any() else 0

    @property
    def is_smooth(self) -> bool:
        """Whether a Taylor test has slope 2: neither kinks, nor no remainder at all."""
        return not self.network.is_linear and all(layer.activation != "relu" for layer in self.network.layers)


def make_emulator(
    name: str, networks: Sequence[PortableNetwork], inputs: Sequence[Variable], outputs: Sequence[Variable],
    origin: Sequence[str], samples: Array,
) -> Emulator:  # fmt: skip
    """Return the description of `networks`, with answers to `samples` (K, F). Raises UserError.

    The networks must have one architecture, and `name` must be a name in all three languages.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,40}", name):
        raise UserError(
            f"--output {name}: its stem names the module, which needs letters, digits and _ only; give emulator.f90"
        )
    if name.lower() in _TAKEN.split():
        raise UserError(
            f"--output {name}: its stem names the module, and {name.lower()} is a word of the language or a name "
            "inside it; give emulator.f90"
        )
    if len({network.architecture for network in networks}) > 1:
        raise UserError("the runs have networks of different sizes or activations; an ensemble needs one architecture")
    probe, tolerance = _probe(samples, inputs)
    return Emulator(
        name, tuple(networks), tuple(_printable(inputs)), tuple(_printable(outputs)), tuple(origin),
        _expected(networks, samples), probe, tolerance,
    )  # fmt: skip


def _printable(variables: Sequence[Variable]) -> list[Variable]:
    """Return the variables with name and units in one short line each, and names that differ where theirs do."""
    names = [_short(one.name) for one in variables]
    counts = Counter(names)
    names = [name if counts[name] == 1 else _short(one.name, f"#{number}")
             for number, (name, one) in enumerate(zip(names, variables, strict=True), 1)]  # fmt: skip
    return [
        replace(one, name=name, units=_short(one.units), whole=one.name)
        for name, one in zip(names, variables, strict=True)
    ]


def _short(text: str, end: str = "") -> str:
    """Return a text on one line of at most `_MOST_BYTES`, `end` at its end; of a longer one, beginning and end.

    The end of a name tells its level.
    """
    text, most = " ".join(text.split()), _MOST_BYTES - len(end.encode())
    if len(text.encode()) <= most:
        return text + end
    half = (most - len(_CUT)) // 2
    first = text.encode()[: most - len(_CUT) - half].decode(errors="ignore")
    return first + _CUT + text.encode()[-half:].decode(errors="ignore") + end


def _expected(networks: Sequence[PortableNetwork], samples: Array) -> Expected:
    first, random = networks[0], np.random.default_rng(0)
    kind = samples.dtype.type
    perturbations = (random.uniform(-1, 1, samples.shape) * first.input_std).astype(kind)
    scale = 1.0 if first.output_std is None else 1.0 / first.output_std
    sensitivities = (random.uniform(-1, 1, (len(samples), first.sizes[-1])) * scale).astype(kind)
    pairs = [with_numpy.jacobian(one, samples) for one in networks]
    outputs, jacobian = np.stack([pair[0] for pair in pairs]), np.stack([pair[1] for pair in pairs])
    tangent = np.stack([with_numpy.tangent_linear(one, samples, perturbations) for one in networks])
    adjoint = np.stack([with_numpy.adjoint(one, samples, sensitivities) for one in networks])
    if len(networks) == 1:
        return Expected(
            samples, outputs[0], jacobian[0], perturbations, tangent[0], sensitivities, adjoint[0], None, None
        )
    mean, spread = with_numpy.mean_of_members, with_numpy.spread_of_members
    return Expected(
        samples, mean(outputs, first), mean(jacobian, first), perturbations, mean(tangent, first), sensitivities,
        mean(adjoint, first), spread(outputs, first), spread(jacobian, first),
    )  # fmt: skip


def _probe(samples: Array, inputs: Sequence[Variable]) -> tuple[Array, Array]:
    """Return a sample in which every input is told from every other one and from itself in other units.

    Its values are ones that a model can hold: whole numbers where the data has no others, and constants as they are.
    """
    mean, std = (np.array([getattr(one, key) for one in inputs]) for key in ("mean", "std"))
    random = np.random.default_rng(1)
    made_up = mean + std * random.uniform(-1, 1, (_NUM_CANDIDATES, len(inputs)))
    is_whole = (samples == np.round(samples)).all(axis=0)
    is_constant = np.array([one.minimum == one.maximum for one in inputs])
    made_up = np.where(is_whole, np.round(made_up), made_up)
    made_up = np.where(is_constant, [one.minimum for one in inputs], made_up)
    best = max(
        [*samples[:_NUM_CANDIDATES].astype(np.float64), *made_up],
        key=lambda one: _distinctness(one[~is_constant], std[~is_constant]),
    )
    probe = best.astype(samples.dtype)
    return probe, _tolerance(best, std).astype(samples.dtype)


def _tolerance(probe: Array, std: Array) -> Array:
    # What conversions between units leave of float32's digits, and much less than samples differ by.
    return np.asarray(2e-6 * (np.abs(probe) + 300.0 * (std > 1e-3)) + 1e-4 * std)


def _distinctness(probe: Array, std: Array) -> float:
    tolerance = _tolerance(probe, std)
    others = [np.abs(np.delete(probe, i) - probe[i]) / tolerance[i] for i in range(len(probe))]
    converted = [np.abs(probe * factor + summand - probe) / tolerance for factor, summand in CONVERSIONS]
    return float(min((one.min() for one in (*others, *converted) if one.size), default=0.0))
