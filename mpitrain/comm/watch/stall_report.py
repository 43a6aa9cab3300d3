"""Which rank keeps the others waiting: from what the ranks last said of themselves to one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_MOST_NAMED = 3


@dataclass(frozen=True)
class Position:
    """What a rank last said of itself; `silent_s` is how long it has not said anything new, None while it answers."""

    rank: int
    host: str
    count: int
    collective: str | None
    step: int
    place: str
    silent_s: float | None = None


def describe_stall(own_rank: int, positions: Sequence[Position], waited_s: float) -> str:
    """One line: for whom this rank waited, where and at which step those were last seen, and what to do.

    `positions` holds all ranks in rank order. Ranks that do not answer, or are busy outside of collectives, keep the
    others waiting; where all wait in a collective, they wait in different ones, or the network does not deliver.
    """
    own = positions[own_rank]
    waited = f"waited {waited_s:.0f} s in {_describe_collective(own)}"
    late = [position for position in positions if position.silent_s is not None or position.collective is None]
    if late:
        return f"{waited} for {_join([_describe_late(position, own) for position in late])}; {_advice(late)}"
    odd = _odd_ones(positions)
    if odd:
        others = [f"{_name(position)} waits in {_describe_collective(position)}" for position in odd]
        return f"{waited}, but {_join(others)}: some code runs a collective on some of the ranks only"
    return f"{waited}, in which all {len(positions)} ranks are: the network between their hosts does not deliver"


def render_positions(positions: Sequence[Position]) -> str:
    """Render a line for each rank: where it is, and for how long it has not answered."""
    lines = []
    for position in positions:
        silent = "" if position.silent_s is None else f", no answer for {position.silent_s:.0f} s"
        where = f"collective {position.count}, step {position.step}, {_whereabouts(position)}"
        lines.append(f"{_name(position)}: {where}{silent}")
    return "\n".join(lines)


def _name(position: Position) -> str:
    return f"rank {position.rank} on {position.host}"


def _describe_collective(position: Position) -> str:
    return f"{position.collective} (collective {position.count}, step {position.step})"


def _describe_late(position: Position, own: Position) -> str:
    if position.silent_s is None:
        return f"{_name(position)}, which is {_whereabouts(position)} at step {position.step}"
    # It took part in what this rank has behind it, so it was seen here later than it last told of itself.
    step = max(position.step, own.step)
    where = f", {_whereabouts(position)}" if position.step == step else ""
    return f"{_name(position)}, which has not answered for {position.silent_s:.0f} s, last seen at step {step}{where}"


def _whereabouts(position: Position) -> str:
    if position.collective is not None:
        return f"in {position.collective}"
    return f"busy in {position.place}" if position.place else "busy"


def _advice(late: Sequence[Position]) -> str:
    if any(position.silent_s is not None for position in late):
        return "see whether its process is stopped or swapped out, or its host unreachable"
    return "raise distributed.timeout_s if that is meant to take so long"


def _odd_ones(positions: Sequence[Position]) -> list[Position]:
    """Return the ranks that wait for something else than most: another collective, or else another number of it."""
    names = Counter(position.collective for position in positions)
    if len(names) > 1:
        usual = names.most_common(1)[0][0]
        return [position for position in positions if position.collective != usual]
    counts = Counter(position.count for position in positions)
    return [position for position in positions if position.count != counts.most_common(1)[0][0]]


def _join(words: Sequence[str]) -> str:
    more = f", and {len(words) - _MOST_NAMED} more" if len(words) > _MOST_NAMED else ""
    return ", and ".join(words[:_MOST_NAMED]) + more
