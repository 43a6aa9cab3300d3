"""Plain-text tables: columns as wide as their widest cell."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], num_left: int | None = None, gap: str = "  ") -> list[str]:
    """Return one line per row, without trailing spaces; the first `num_left` columns (None: all) are left-aligned.

    The other columns are right-aligned. Raises ValueError unless all rows have the same number of cells.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    num_left = len(widths) if num_left is None else num_left
    sides = [str.ljust] * num_left + [str.rjust] * (len(widths) - num_left)
    return [
        gap.join(side(cell, width) for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in rows
    ]
