"""Failures of a member on all ranks of a group: the ranks agree on them without MPI, and continue."""

from __future__ import annotations

import json
import time

from mpitrain.comm import Ranks
from mpitrain.comm.agreement import is_agreed
from mpitrain.comm.claims import Claims
from mpitrain.errors import MpitrainError

# A rank that computes may fail this much later than the first; one that waits in a collective never does.
_LONGEST_WAIT_S = 10.0
_POLL_S = 0.005


def may_go_on(group: Ranks, claims: Claims, member: str, error: Exception) -> bool:
    """Return whether `group` can continue after `error` in `member`: all its ranks failed, and none waits."""
    return group.world_size == 1 or is_agreed(error) or _all_failed_alike(group, claims, member)


def is_in_collective(group: Ranks) -> bool:
    """Return whether this rank failed in a collective: another rank, or the network between them, may be lost."""
    return any(notes.collective is not None for notes in (group.cpu.notes, group.tensors.notes))


def describe(error: Exception) -> str:
    """Return one line that describes the error of a member; code of a user may raise any exception."""
    kind = "" if isinstance(error, MpitrainError) else f"{type(error).__name__}: "
    return f"{kind}{error}".splitlines()[0]


def _all_failed_alike(group: Ranks, claims: Claims, member: str) -> bool:
    """Return whether all ranks of `group` failed in `member`, after the same collectives and in none of them.

    Each rank calls this once it has failed. If True, no message is in transit, and the group can continue; if False,
    another rank waits for this one, and all ranks must end.
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
