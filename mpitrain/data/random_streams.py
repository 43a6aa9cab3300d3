"""Random numbers that depend on keys and an index only, never on the order of calls, the rank or a library's version.

The finaliser of splitmix64 (Steele, Lea and Flood, 2014) over 64-bit words: simple enough to implement in C++ as well,
and the same in every version, unlike the generator behind a library's `shuffle`.
"""

from __future__ import annotations

from enum import IntEnum, unique

import numpy as np
import numpy.typing as npt

from mpitrain.data.portable_math import cosine_of_turns, logarithm

UInt64Array = npt.NDArray[np.uint64]
_INCREMENT = 0x9E3779B97F4A7C15
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
_WORD = 0xFFFFFFFFFFFFFFFF


@unique
class Stream(IntEnum):
    """Purpose of random numbers: their second key, after the seed."""

    VALIDATION = 1
    SHUFFLE = 2
    CHUNKS = 3
    BUFFER = 4
    STEP = 5
    SETTINGS = 6
    FIRST_WEIGHTS = 7
    THINNING = 0x7468696E  # "thin"


def keyed_words(keys: tuple[int, ...], count: int, first: int = 0) -> UInt64Array:
    """Return the random 64-bit words (count,) with the indices `first` ... `first` + `count` - 1 for `keys`."""
    return _words_at(keys, np.arange(first, first + count, dtype=np.uint64))


def keyed_uniform(keys: tuple[int, ...], count: int, first: int = 0) -> npt.NDArray[np.float64]:
    """Return uniform float64 numbers in [0, 1) (count,), with the indices of `keyed_words`."""
    return (keyed_words(keys, count, first) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def keyed_uniform_at(keys: tuple[int, ...], numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the float64 numbers of `keyed_uniform` with the indices `numbers` (N,), which may be in any order."""
    return (_words_at(keys, numbers.astype(np.uint64)) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def keyed_normal(keys: tuple[int, ...], count: int) -> npt.NDArray[np.float64]:
    """Return float64 numbers of the standard normal distribution (count,), each from two words (Box and Muller, 1958).

    The same bits on every machine.
    """
    words = (keyed_words(keys, 2 * count) >> np.uint64(11)).astype(np.float64).reshape(count, 2)
    # The first word becomes a number in (0, 1], so that its logarithm is finite; the second an angle in turns.
    return np.sqrt(-2 * logarithm((words[:, 0] + 1) * 2.0**-53)) * cosine_of_turns(words[:, 1] * 2.0**-53)


def keyed_permutation(keys: tuple[int, ...], count: int) -> npt.NDArray[np.int64]:
    """Return a permutation of 0 ... count - 1 (count,), fixed by `keys` and `count`."""
    words = keyed_words(keys, count)
    # Words with different indices differ, so every correct sort gives the same order. numpy's default sort is the
    # fastest, but its vector instructions gave a wrong order on an emulated CPU (qemu 7.2, AVX2, some hundred numbers).
    order = np.argsort(words)
    ordered = words[order]
    return order if (ordered[1:] > ordered[:-1]).all() else np.argsort(words, kind="stable")


def _state(keys: tuple[int, ...]) -> np.uint64:
    # Python integers: numpy calls would take longer than many of the permutations that this seeds.
    state = 0
    for key in keys:
        word = ((state ^ (key & _WORD)) + _INCREMENT) & _WORD
        for shift, factor in _ROUNDS:
            word = ((word ^ (word >> shift)) * factor) & _WORD
        state = word ^ (word >> _LAST_SHIFT)
    return np.uint64(state)


def _words_at(keys: tuple[int, ...], numbers: UInt64Array) -> UInt64Array:
    with np.errstate(over="ignore"):
        words = _state(keys) + (numbers + np.uint64(1)) * np.uint64(_INCREMENT)
        for shift, factor in _ROUNDS:
            words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
        return words ^ (words >> np.uint64(_LAST_SHIFT))
