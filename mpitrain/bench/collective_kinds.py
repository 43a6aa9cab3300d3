"""Measured collectives: values sent, expected result, and bandwidth factor.

P  number of ranks    r, q  a rank    n  number of values of the whole message    c = n / P  values of one rank's part

Value i of rank r is v(r, i) = i mod 1021 + r + 1: integers whose sum over ranks has a closed form and stays below
2^24, so that float32 represents it exactly in any order of addition. Source of sizes and factors:
https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

_MODULUS = 1021  # prime, so that no two parts of a message are equal


@dataclass(frozen=True)
class CollectiveKind:
    """One collective. `sends_part`, `receives_part`: c values, otherwise n.

    `expected(num_values, size, rank)` returns the correct result on `rank`.
    """

    name: str
    sends_part: bool
    receives_part: bool
    works_in_place: bool
    bus_factor: Callable[[int], float]
    expected: Callable[[int, int, int], torch.Tensor]

    def num_values(self, num_bytes: int, size: int) -> int:
        """Return n for a message of about `num_bytes` of float32: at least one value, or one value per part."""
        # With one part per rank, n must be a multiple of P.
        unit = size if self.sends_part or self.receives_part or self.name == "all_to_all" else 1
        return max(num_bytes // 4 // unit, 1) * unit

    def sent(self, num_values: int, size: int, rank: int) -> torch.Tensor:
        """Return the values that `rank` sends, (n,) or (c,)."""
        return own_values(rank, torch.arange(num_values // size if self.sends_part else num_values))


def own_values(rank: int, places: torch.Tensor) -> torch.Tensor:
    """Return v(rank, i) for the indices i in `places`."""
    return (places % _MODULUS + rank + 1).float()


def summed_values(size: int, places: torch.Tensor) -> torch.Tensor:
    """Return the sum of v(r, i) over all ranks: P (i mod 1021) + P (P + 1) / 2."""
    return (size * (places % _MODULUS) + size * (size + 1) // 2).float()


def _part(num_values: int, size: int, rank: int) -> torch.Tensor:
    count = num_values // size
    return torch.arange(rank * count, (rank + 1) * count)


def _from_each(size: int, places: torch.Tensor) -> torch.Tensor:
    return torch.cat([own_values(rank, places) for rank in range(size)])


KINDS = {
    kind.name: kind
    for kind in (
        CollectiveKind(
            "all_reduce", False, False, True, lambda size: 2 * (size - 1) / size,
            lambda num_values, size, rank: summed_values(size, torch.arange(num_values)),
        ),
        CollectiveKind(
            "all_gather", True, False, False, lambda size: (size - 1) / size,
            lambda num_values, size, rank: _from_each(size, torch.arange(num_values // size)),
        ),
        CollectiveKind(
            "reduce_scatter", False, True, False, lambda size: (size - 1) / size,
            lambda num_values, size, rank: summed_values(size, _part(num_values, size, rank)),
        ),
        CollectiveKind(
            "broadcast", False, False, True, lambda size: 1.0,
            lambda num_values, size, rank: own_values(0, torch.arange(num_values)),
        ),
        CollectiveKind(
            "all_to_all", False, False, False, lambda size: (size - 1) / size,
            lambda num_values, size, rank: _from_each(size, _part(num_values, size, rank)),
        ),
        # Each rank sends its whole message to the next rank, as two nodes do in the compiled engine's sums.
        CollectiveKind(
            "exchange", False, False, False, lambda size: 1.0,
            lambda num_values, size, rank: own_values((rank - 1) % size, torch.arange(num_values)),
        ),
    )
}  # fmt: skip
