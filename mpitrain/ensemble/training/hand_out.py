"""Distribution of members to groups: each group that becomes free claims the next member."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from mpitrain.comm import Ranks
from mpitrain.comm.claims import Claims, open_claims
from mpitrain.ensemble.outcome import Known, Outcome
from mpitrain.ensemble.plan.members import Member
from mpitrain.train import StopRequest

_STOP_POLL_S = 0.25
_STOP = "stop"


class SharedStop(StopRequest):
    """A request to stop that any rank of the launch has received."""

    def __init__(self, claims: Claims, own: StopRequest) -> None:
        """`own` receives this rank's signals."""
        super().__init__()
        self._claims, self._own, self._next_look_s = claims, own, 0.0

    @property
    def is_set(self) -> bool:
        """True within a quarter of a second after any rank has received a signal."""
        if self.signal_name is None:
            self._look()
        return self.signal_name is not None

    def _look(self) -> None:
        if self._own.signal_name is not None:
            self.signal_name = self._own.signal_name
            self._claims.put(_STOP, self.signal_name)
        elif time.monotonic() >= self._next_look_s:
            self._next_look_s = time.monotonic() + _STOP_POLL_S
            if self._claims.has([_STOP]):
                self.signal_name = self._claims.get(_STOP)


def open_member_queue(ranks: Ranks, todo: Sequence[Member], known: Known, own_stop: StopRequest) -> MemberQueue:
    """Return the queue of the members `todo`, in this order; `known` are outcomes of the others. Collective.

    `own_stop` receives this rank's signals.
    """
    claims = open_claims(ranks)
    return MemberQueue(todo, claims, SharedStop(claims, own_stop), dict(known))


@dataclass
class MemberQueue:
    """The members that are still to be trained."""

    todo: Sequence[Member]
    claims: Claims
    stop_request: StopRequest
    results: Known

    def report(self, outcome: Outcome) -> None:
        """Publish the outcome of a member to all groups."""
        self.claims.put(_key(outcome.number), outcome.to_json())

    def next_member(self, group: Ranks) -> Member | None:
        """Return the next member of this group, None if none is left or a stop is requested. Collective."""
        place = group.broadcast_object(self._claim() if group.is_root else None)
        return None if place is None else self.todo[place]

    def _claim(self) -> int | None:
        if self.stop_request.is_set or (place := self.claims.take("member")) >= len(self.todo):
            return None
        return place

    def all_results(self) -> Known:
        """Return the outcomes of all members that have ended."""
        for member in self.todo:
            if self.claims.has([_key(member.number)]):
                self.results[member.number] = Outcome.from_json(self.claims.get(_key(member.number)))
        return dict(self.results)


@dataclass
class Progress:
    """Progress of the ensemble: prints from time to time how many members of all groups have ended."""

    ranks: Ranks
    claims: Claims
    num_members: int
    _printed_s: float = field(default_factory=time.monotonic)

    def count(self, group: Ranks) -> None:
        """Count one more member; the root of all ranks prints the count at most every ten seconds."""
        if not group.is_root:
            return
        number = self.claims.take("ended") + 1
        if time.monotonic() - self._printed_s >= 10 and number < self.num_members:
            self._printed_s = time.monotonic()
            self.ranks.say(f"{number} of {self.num_members} members trained", error=True)


def _key(number: int) -> str:
    return f"result {number}"
