"""Values that may mean that there is no value, which no attribute of the file says: 0 over land, 9999.

N  values
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating]
_MOST_LOOKED_AT = 1_000_000
# Fewer distinct values are flags or classes. The gap beside one is that many times the others', and it is far away (in
# widths of the others) or frequent.
_FEWEST_DISTINCT, _OF_OTHER_GAPS, _FAR, _FREQUENT = 20, 3.0, 3.0, 0.05


@dataclass
class LooksLikeFill:
    """Collects values of one variable, some of those of each part, and tells which of them stands apart."""

    name: str
    num_parts: int
    is_on_grid: bool = True
    _parts: list[Array] = field(default_factory=list)

    def add(self, values: Array) -> None:
        """Look at a part of all values, of any shape, NaN where there is none."""
        known = values[np.isfinite(values)]
        step = max(1, -(-known.size * self.num_parts // _MOST_LOOKED_AT))
        self._parts.append(known[::step])

    def notices(self) -> Sequence[str]:
        """Return one notice for each end of the values that stands apart from all others."""
        values = np.concatenate(self._parts) if self._parts else np.empty(0)
        distinct, counts = np.unique(values, return_counts=True)
        if len(distinct) < _FEWEST_DISTINCT:
            return ()
        ends = ((distinct[0], counts[0], distinct[1:], ">"), (distinct[-1], counts[-1], distinct[:-1], "<"))
        return tuple(self._told(*end, len(values)) for end in ends if _stands_apart(*end[:3], len(values)))

    def _told(self, end: float, count: int, others: Array, sign: str, num_values: int) -> str:
        return (
            f"{self.name}: {100 * count / num_values:.2g} % of its values are {end:.6g}, apart from the others, "
            f"{others[0]:.6g} to {others[-1]:.6g}; where that is a fill value, {self._advice(end, sign)}"
        )

    def _advice(self, end: float, sign: str) -> str:
        return (
            f"domain.mask='{self.name} {sign} {end:.6g}' leaves it out" if self.is_on_grid else "write NaN in its place"
        )


def _stands_apart(end: float, count: int, others: Array, num_values: int) -> bool:
    gap = float(min(abs(others[0] - end), abs(others[-1] - end)))
    is_far, is_frequent = gap > _FAR * float(others[-1] - others[0]), count > _FREQUENT * num_values
    return gap > _OF_OTHER_GAPS * float(np.diff(others).max()) and (is_far or is_frequent)
