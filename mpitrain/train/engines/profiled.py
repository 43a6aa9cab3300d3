"""Names for reductions in a profile: torch records only its own operations, not MPI messages or the compiled step."""

from __future__ import annotations

import torch
from torch.profiler import record_function

from mpitrain.comm import Ranks, Reducer


class NamedReducer:
    """A reducer that names its sums in the profile, e.g. `Allreduce of 1.1 KB (mpi, reduction fixed)`."""

    def __init__(self, reducer: Reducer, ranks: Ranks) -> None:
        self._reducer, self._ranks = reducer, ranks

    def reduce(self, partials: torch.Tensor) -> torch.Tensor:
        """See `Reducer.reduce`."""
        row_bytes = partials.shape[-1] * partials.element_size()
        carrier = self._ranks.backend if self._ranks.world_size > 1 else "one rank"
        with record_function(allreduce_name(row_bytes, carrier, self._ranks.reduction)):
            total: torch.Tensor = self._reducer.reduce(partials)
        return total


def allreduce_name(num_bytes: int, carrier: str, reduction: str) -> str:
    """Return the name in the profile of a sum over the ranks."""
    return f"Allreduce of {num_bytes / 1000:.3g} KB ({carrier}, reduction {reduction})"
