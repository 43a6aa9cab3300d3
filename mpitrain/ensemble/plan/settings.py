"""The settings that vary between members: the combinations of a grid, and random draws for each of them."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Mapping
from typing import Any

from mpitrain.config import EnsembleSection
from mpitrain.data.random_streams import Stream, keyed_uniform

Varied = dict[str, Any]
_DIGITS = 6


def combinations(section: EnsembleSection, seed: int) -> list[Varied]:
    """Return the settings that vary between members, by dotted key; a pure function of its arguments.

    The last key of the grid changes fastest; the draws of one combination follow each other. A draw depends only on
    seed, key and its number, so that further draws or keys do not change it.
    """
    grid = [dict(zip(section.grid, values, strict=True)) for values in itertools.product(*section.grid.values())]
    drawn = [_draw(section.random, seed, number) for number in range(len(grid) * section.num_draws)]
    return [
        {**fixed, **drawn[place * section.num_draws + draw]}
        for place, fixed in enumerate(grid)
        for draw in range(section.num_draws)
    ]


def _draw(ranges: Mapping[str, Any], seed: int, number: int) -> Varied:
    return {key: _value(values, _uniform(key, seed, number)) for key, values in ranges.items()}


def _uniform(key: str, seed: int, number: int) -> float:
    # Keyed by name, so that other keys do not change the value.
    return float(keyed_uniform((seed, Stream.SETTINGS, zlib.crc32(key.encode())), 1, number)[0])


def _value(values: Any, uniform: float) -> Any:
    if isinstance(values, list):
        return values[int(uniform * len(values))]
    low, high = values["low"], values["high"]
    is_whole = isinstance(low, int) and isinstance(high, int)
    last = high + 1 if is_whole else high
    if values.get("scale") == "log":
        found = low * math.exp(uniform * math.log(last / low))
    else:
        found = low + uniform * (last - low)
    # The last digits of exp depend on the mathematical library; six digits are the same everywhere, and readable.
    return min(int(found), high) if is_whole else float(f"{found:.{_DIGITS}g}")
