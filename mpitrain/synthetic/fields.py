"""The fields of the synthetic CICE history file: an ocean with ice that follows a known relation.

Shapes: J latitudes (nj), I longitudes (ni), F = 7 inputs, N samples.

Over icy ocean the conditional mean of the ice concentration is exactly sigmoid(w . x + b) of the seven stored (float32)
inputs, so the smallest error that a network can reach is that of the noise added here.

The values have the same bits on every machine: numpy gives + - * / and uniform random numbers, portable_math the rest.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpitrain.data import CICE_INPUTS, CICE_TARGET
from mpitrain.data.portable_math import cosine_of_turns, exponential, logarithm, sine_of_turns
from mpitrain.data.selection.rule import select_points

Pole: TypeAlias = Literal["north", "south"]
Float32Array: TypeAlias = NDArray[np.float32]
Float64Array: TypeAlias = NDArray[np.float64]

MISSING_VALUE = np.float32(1e30)

# Per unit of each input (C, C, C, ppt, m, m, ppt): more ice if cold, thick, snowy or over fresher water; less if salty.
AICE_WEIGHTS: Float64Array = np.array([-0.080, -0.100, -1.30, -0.30, 3.2, 1.00, -0.26])
AICE_BIAS = 6.0

FREEZING_POINT_C = -1.8
NOISE_SD_MID = 0.04  # standard deviation of the noise at a concentration of one half
NOISE_SD_FLOOR = 0.002
LAND_FRACTION = 0.27
_NUM_WAVES = 24
_TURNS_A_RADIAN = 0.15915494309189535

# Every random field has its own stream, so that a change to one of them does not change the others.
_STREAMS = ("land", "coast", "coldness", "noise", *CICE_INPUTS)


Level: TypeAlias = dict[str, Float32Array]


class SyntheticOcean:
    """Synthetic ocean: the grid `latitude_deg`, `longitude_deg`, `mask` (1 ocean, 0 land), each (J, I), and levels."""

    def __init__(self, seed: int, num_latitudes: int, num_longitudes: int) -> None:
        """Create the grid and the land from `seed`."""
        self.seed = seed
        self._latitude_deg, longitude_deg = _grid(num_latitudes, num_longitudes)
        self._sphere = _Sphere(_unit_vectors(self._latitude_deg, longitude_deg), seed)
        self._land = _land(self._latitude_deg, self._sphere)
        self.latitude_deg = self._latitude_deg.astype(np.float32)
        self.longitude_deg = longitude_deg.astype(np.float32)
        self.mask = np.where(self._land, 0, 1).astype(np.float32)

    def level(self, time: int) -> Level:
        """Return all history fields (J, I) of a time level by name; a level does not depend on others."""
        sphere, land = self._sphere, self._land
        coldness = _coldness(self._latitude_deg, sphere, time)
        icy = coldness > 0
        fields = {
            name: np.where(land, MISSING_VALUE, field.astype(np.float32)).astype(np.float32)
            for name, field in _inputs(coldness, icy, sphere, time).items()
        }
        stored = np.stack([fields[name] for name in CICE_INPUTS], axis=-1)
        noise = 2.0 * _generator(sphere.seed, "noise", time).random(land.shape) - 1.0
        aice = np.zeros(land.shape, np.float32)
        chosen = icy & ~land
        aice[chosen] = _noisy_concentration(stored[chosen], noise[chosen])
        aice[land] = MISSING_VALUE
        return {CICE_TARGET: aice, **fields}

    def squared_noise(self, level: Level, pole: Pole) -> tuple[float, int]:
        """Return the sum of the squared realised noise over a level's clean samples of `pole`, and their number."""
        chosen = select_points(self.latitude_deg, self.mask, level[CICE_TARGET], pole, is_clean=True)
        inputs = np.stack([level[name][chosen] for name in CICE_INPUTS], axis=-1)  # (N, F)
        noise = level[CICE_TARGET][chosen].astype(np.float64) - mean_concentration(inputs)
        return float(np.sum(noise**2)), len(noise)


def mean_concentration(inputs: Float32Array) -> Float64Array:
    """Return sigmoid(w . x + b), the concentration without its noise: (..., F) as stored -> (...) in float64."""
    terms = (weight * inputs[..., f].astype(np.float64) for f, weight in enumerate(AICE_WEIGHTS))
    return _sigmoid(sum(terms, np.zeros(inputs.shape[:-1])) + AICE_BIAS)


def _grid(num_latitudes: int, num_longitudes: int) -> tuple[Float64Array, Float64Array]:
    latitudes = np.linspace(-79.0, 89.0, num_latitudes)
    longitudes = np.arange(num_longitudes) * (360.0 / num_longitudes)
    latitude_deg, longitude_deg = np.meshgrid(latitudes, longitudes, indexing="ij")
    return latitude_deg, longitude_deg


def _unit_vectors(latitude_deg: Float64Array, longitude_deg: Float64Array) -> Float64Array:
    """Return points on the unit sphere (J, I, 3): waves on them are smooth across the poles and the date line."""
    latitude, longitude = latitude_deg / 360.0, longitude_deg / 360.0  # in turns
    from_axis = cosine_of_turns(latitude)
    x, y = from_axis * cosine_of_turns(longitude), from_axis * sine_of_turns(longitude)
    return np.stack([x, y, sine_of_turns(latitude)], axis=-1)


def _land(latitude_deg: Float64Array, sphere: _Sphere) -> NDArray[np.bool_]:
    """Return where land is: continents where a sum of waves is high, and one around the south pole, as on Earth."""
    height = sphere.waves("land", (5.0, 10.0))
    # The same fraction on both sides of the equator: otherwise some seeds would leave a pole almost without ocean.
    north = latitude_deg > 0
    sea_level = np.where(north, *(np.quantile(height[side], 1 - LAND_FRACTION) for side in (north, ~north)))
    antarctica = latitude_deg < -72.0 + 3.0 * sphere.waves("coast", (4.0, 9.0))
    return (height > sea_level) | antarctica


def _coldness(latitude_deg: Float64Array, sphere: _Sphere, time: int) -> Float64Array:
    """Return 0 at the ice edge, about 1 near the poles, about -1.7 at the equator."""
    north = latitude_deg > 0
    beyond_edge_deg = np.abs(latitude_deg) - np.where(north, 48.0, 53.0)
    # In the south it becomes cold within fewer degrees, because of Antarctica.
    width_deg = np.where(north | (beyond_edge_deg < 0), 30.0, 20.0)
    linear = beyond_edge_deg / width_deg + 0.12 * sphere.waves("coldness", (3.0, 8.0), time)
    return np.minimum(linear, _tanh(linear) * 1.25)


def _inputs(coldness: Float64Array, icy: NDArray[np.bool_], sphere: _Sphere, time: int) -> dict[str, Float64Array]:
    """Return the seven inputs (J, I): each depends on coldness and has its own variation, so that none is redundant."""
    tair, tsfc, sst, sss, hs, hi, sice = (_variability(sphere, name, time) for name in CICE_INPUTS)
    warm_water = np.maximum(-coldness, 0.0)  # zero over ice
    sst_c = FREEZING_POINT_C + 0.6 * _softplus(0.6 - 2.5 * coldness + 1.1 * sst) + 14.0 * warm_water
    return {
        "Tair_h": 2.0 - _softplus(7.0 + 20.0 * coldness + 5.0 * tair) + 16.0 * warm_water,
        # Ice is never warmer than its melting point; without ice this is the temperature of the water.
        "Tsfc_h": np.where(icy, -_softplus(3.5 + 13.0 * coldness + 4.0 * tsfc), sst_c),
        "sst_h": sst_c,
        "sss_h": 32.5 + 3.4 * _tanh((0.4 - 0.8 * coldness + 1.2 * sss) / 3.4),
        "hs_h": np.where(icy, 0.20 * _softplus(1.2 * coldness - 0.2 + 1.1 * hs), 0.0),
        "hi_h": np.where(icy, 0.05 + 0.9 * _softplus(1.8 * coldness - 0.3 + 1.1 * hi), 0.0),
        "sice_h": np.where(icy, 7.5 + 4.4 * _tanh((0.8 - 1.4 * coldness + 1.5 * sice) / 4.4), 0.0),
    }


def _noisy_concentration(inputs: Float32Array, source: Float64Array) -> Float32Array:
    """Add noise of mean zero to the relation: inputs (N, F), source (N,) uniform in [-1, 1) -> (N,) inside (0, 1)."""
    mean = mean_concentration(inputs)
    standard_deviation = NOISE_SD_FLOOR + (NOISE_SD_MID - NOISE_SD_FLOOR) * 4.0 * mean * (1.0 - mean)
    # Uniform with a symmetric limit: the selection 0 < aice <= 1 removes no point, and the mean does not change.
    amplitude = np.minimum(np.sqrt(3.0) * standard_deviation, 0.9 * np.minimum(mean, 1.0 - mean))
    return np.asarray((mean + amplitude * source).astype(np.float32))


def _variability(sphere: _Sphere, stream: str, time: int) -> Float64Array:
    """Return a field (J, I) of variance about 1: half of it smooth, half of it varying from cell to cell."""
    smooth = sphere.waves(stream, (6.0, 14.0), time)
    white = _normal(_generator(sphere.seed, stream, 1 + time), smooth.shape)
    along_latitude = white + 0.5 * (np.roll(white, 1, axis=1) + np.roll(white, -1, axis=1))
    return np.asarray(np.sqrt(0.5) * smooth + np.sqrt(0.5 / 1.5) * along_latitude)


class _Sphere:
    """Points (J, I, 3), and plane waves on them, whose sums of cosines and sines are computed once for all levels."""

    def __init__(self, position: Float64Array, seed: int) -> None:
        self.seed = seed
        self._position = position
        self._sums: dict[tuple[str, str], Float64Array] = {}

    def waves(self, stream: str, wavenumbers: tuple[float, float], time: int = 0) -> Float64Array:
        """Return the sum of a stream's plane waves: (J, I), variance about 1; the phases drift with `time`."""
        cosines = self._sum(stream, wavenumbers, "cos")
        if time == 0:
            return cosines
        # cos(a + d) = cos(a) cos(d) - sin(a) sin(d), with one drift d for all waves
        sines, drift = self._sum(stream, wavenumbers, "sin"), 0.1 * time * _TURNS_A_RADIAN
        return cosines * cosine_of_turns(drift) - sines * sine_of_turns(drift)

    def _sum(self, stream: str, wavenumbers: tuple[float, float], function: str) -> Float64Array:
        if (stream, function) not in self._sums:
            generator = _generator(self.seed, stream)
            directions = _normal(generator, (_NUM_WAVES, 3))
            lengths = np.sqrt(directions[:, 0] ** 2 + directions[:, 1] ** 2 + directions[:, 2] ** 2)
            low, high = wavenumbers
            radii = (low + (high - low) * generator.random(_NUM_WAVES)) * _TURNS_A_RADIAN
            compute = cosine_of_turns if function == "cos" else sine_of_turns
            total = np.zeros(self._position.shape[:-1])
            wavevectors, phases = directions * (radii / lengths)[:, None], generator.random(_NUM_WAVES)
            x, y, z = (self._position[..., axis] for axis in range(3))
            for (kx, ky, kz), phase in zip(wavevectors, phases, strict=True):
                total += compute(kx * x + ky * y + kz * z + phase)
            self._sums[stream, function] = np.sqrt(2.0 / _NUM_WAVES) * total
        return self._sums[stream, function]


def _generator(seed: int, stream: str, part: int = 0) -> np.random.Generator:
    return np.random.default_rng([seed, _STREAMS.index(stream), part])


def _normal(generator: np.random.Generator, shape: tuple[int, ...]) -> Float64Array:
    """Return numbers of the standard normal distribution (Box and Muller, 1958)."""
    sizes = np.sqrt(-2.0 * logarithm(1.0 - generator.random(shape)))
    return np.asarray(sizes * cosine_of_turns(generator.random(shape)))


def _softplus(x: Float64Array) -> Float64Array:
    return np.maximum(x, 0.0) + logarithm(1.0 + exponential(-np.minimum(np.abs(x), 700.0)))


def _sigmoid(x: Float64Array) -> Float64Array:
    return 1.0 / (1.0 + exponential(np.clip(-x, -700.0, 700.0)))


def _tanh(x: Float64Array) -> Float64Array:
    return 1.0 - 2.0 / (1.0 + exponential(np.clip(2.0 * x, -700.0, 700.0)))
