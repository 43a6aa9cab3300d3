"""A failure of a member's own code on all ranks of a group: they agree on it without MPI, and go on."""

from __future__ import annotations

import json
import time

from mpitrain.comm import Ranks
from mpitrain.comm.agreement import is_agreed
from mpitrain.comm.claims import Claims
from mpitrain.errors import MpitrainError

# A rank that computes may come so much later than the first; one that waits in a collective never comes.
_LONGEST_WAIT_S = 10.0
_POLL_S = 0.005


def may_go_on(group: Ranks, claims: Claims, member: str, error: Exception) -> bool:
    """Tell whether `group` can go on after `error` in `member`: all its ranks have it, and none waits for another."""
    return group.world_size == 1 or is_agreed(error) or _all_failed_alike(group, claims, member)


def is_in_collective(group: Ranks) -> bool:
    """Tell whether this rank has failed in a collective: then another one, or what connects them, may be lost."""
    return any(notes.collective is not None for notes in (group.cpu.notes, group.tensors.notes))


def describe(error: Exception) -> str:
    """Return one line that says what a member has failed with; another's code may raise anything."""
    kind = "" if isinstance(error, MpitrainError) else f"{type(error).__name__}: "
    return f"{kind}{error}".splitlines()[0]


def _all_failed_alike(group: Ranks, claims: Claims, member: str) -> bool:
    """Tell whether every rank of `group` has failed in `member`, after the same collectives and in none of them.

    Each rank calls this once it has failed. Where it is true no message is under way, and the group can go on; where
    false, another rank waits for this one, and the world must end.
    """
    notes = (group.cpu.notes, group.tensors.notes)
    position = json.dumps([(one.count, one.collective) for one in notes])
    names = [f"failed {member} {rank}" for rank in range(group.world_size)]
    claims.put(names[group.rank], position)
    deadline_s = time.monotonic() + _LONGEST_WAIT_S
    while not claims.has(names):
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(_POLL_S)
    return not is_in_collective(group) and all(claims.get(name) == position for name in names)
