"""The content of a source file: networks, their variables, and samples with the expected results.

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

# Unit mistakes that `check_layout` recognises: the value passed is factor * (right value) + summand.
CONVERSIONS = (
    (1.0, 273.15), (1.0, -273.15), (1.8, 32.0), (1000.0, 0.0), (0.001, 0.0), (100.0, 0.0), (0.01, 0.0), (-1.0, 0.0),
    (0.5144444444, 0.0), (1.9438444924, 0.0), (57.295779513, 0.0), (0.01745329252, 0.0),
)  # fmt: skip
_NUM_CANDIDATES = 64
_CUT = ".."
_MOST_BYTES = 60  # of a name or unit: with doubled quotes it must fit in one line of Fortran
# Names that would collide with those of the sources, or with keywords of a language.
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

    `name` may be shortened; `whole` is the full name, from which the variable of a level is found.
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
    """Samples of the training data and their expected results: the self-test's numbers, bit for bit.

    `perturbations` (K, F) and `sensitivities` (K, O) are inputs of tangent linear and adjoint. The spreads (K, O) and
    (K, O, F) are None if there is no ensemble.
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
    """All data from which the text of the sources is generated.

    `name` is the prefix of all names in C, and the module or namespace in Fortran and C++. `origin` is written in a
    comment. `check_layout` compares with the sample `probe` (F,), to within `tolerance` (F,). If `is_gpu_callable`, GPU
    kernels may call the Fortran procedures of one sample.
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
        """The first network; all networks have its architecture."""
        return self.networks[0]

    @property
    def is_ensemble(self) -> bool:
        """Whether the results are means and spreads of several networks."""
        return len(self.networks) > 1

    @property
    def expected_of_probe(self) -> tuple[Array, Array]:
        """The outputs (O,) and derivatives (O * F,) at the probe, which `check_arithmetic` compares."""
        found = _expected(self.networks, self.probe[None])
        return found.outputs[0], found.jacobian[0].ravel()

    @property
    def first_distinct_input(self) -> int:
        """Index of an input with another value in the probe than input 0; 0 if there is none."""
        differs = np.abs(self.probe - self.probe[0]) > 2 * (self.tolerance + self.tolerance[0])
        return int(np.flatnonzero(differs)[0]) if differs.any() else 0

    @property
    def is_smooth(self) -> bool:
        """Whether a Taylor test has slope 2: the network is not linear, and no activation has a kink."""
        return not self.network.is_linear and all(layer.activation != "relu" for layer in self.network.layers)


def make_emulator(
    name: str, networks: Sequence[PortableNetwork], inputs: Sequence[Variable], outputs: Sequence[Variable],
    origin: Sequence[str], samples: Array,
) -> Emulator:  # fmt: skip
    """Return the emulator of `networks`, with expected results for `samples` (K, F). Raises UserError.

    The networks must have the same architecture, and `name` must be a valid name in all three languages.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,40}", name):
        raise UserError(
            f"--output {name}: its stem names the module: give a letter, then at most 40 letters, digits or _, as in "
            "emulator.f90"
        )
    if name.lower() in _TAKEN.split():
        raise UserError(
            f"--output {name}: its stem names the module, and {name.lower()} is a keyword of a language or a name "
            "in the module; give emulator.f90"
        )
    if len({network.architecture for network in networks}) > 1:
        raise UserError("the runs have networks of different sizes or activations; an ensemble needs one architecture")
    probe, tolerance = _probe(samples, inputs)
    return Emulator(
        name, tuple(networks), tuple(_printable(inputs)), tuple(_printable(outputs)), tuple(origin),
        _expected(networks, samples), probe, tolerance,
    )  # fmt: skip


def _printable(variables: Sequence[Variable]) -> list[Variable]:
    """Return the variables with names and units shortened to one line each; different names stay different."""
    names = [_short(one.name) for one in variables]
    counts = Counter(names)
    names = [name if counts[name] == 1 else _short(one.name, f"#{number}")
             for number, (name, one) in enumerate(zip(names, variables, strict=True), 1)]  # fmt: skip
    return [
        replace(one, name=name, units=_short(one.units), whole=one.name)
        for name, one in zip(names, variables, strict=True)
    ]


def _short(text: str, end: str = "") -> str:
    """Return a text as one line of at most `_MOST_BYTES` that ends with `end`; cut the middle of a longer one.

    The end of a name is kept because it contains the level.
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
    """Return a sample, and tolerances, in which each input differs from all others and from itself in other units.

    A model can hold its values: whole numbers for inputs that have no others, and the constant of constant inputs.
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
    # Covers the float32 rounding of unit conversions, and is much less than the differences between samples.
    return np.asarray(2e-6 * (np.abs(probe) + 300.0 * (std > 1e-3)) + 1e-4 * std)


def _distinctness(probe: Array, std: Array) -> float:
    tolerance = _tolerance(probe, std)
    others = [np.abs(np.delete(probe, i) - probe[i]) / tolerance[i] for i in range(len(probe))]
    converted = [np.abs(probe * factor + summand - probe) / tolerance for factor, summand in CONVERSIONS]
    return float(min((one.min() for one in (*others, *converted) if one.size), default=0.0))
