"""The small table that an error about a contradicting launch shows."""

from __future__ import annotations

from collections.abc import Sequence

from mpitrain.cluster.rank_info import RankClaim


def render_claims_table(claims: Sequence[RankClaim]) -> str:
    """Render one line a source: what it says of this process and which variables say so; `-` where it says nothing."""
    rows = [("source", "rank", "world_size", "local_rank", "read from")]
    rows += [
        (
            claim.source,
            _cell(claim.rank),
            _cell(claim.world_size),
            _cell(claim.local_rank),
            ", ".join(claim.variables) or "-",
        )
        for claim in claims
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _cell(number: int | None) -> str:
    return "-" if number is None else str(number)
