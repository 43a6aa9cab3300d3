"""Handing out members to groups as they fall free: claimed one by one, wherever the slowest may be."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from mpitrain.comm.claims import Claims, open_claims
from mpitrain.comm.ranks import Ranks
from mpitrain.ensemble.outcome import Known, Outcome
from mpitrain.ensemble.plan.members import Member
from mpitrain.ensemble.plan.search import Search, Stage
from mpitrain.train.stop_request import StopRequest

_POLL_S = 0.005
_LONGEST_WAIT_S = 2.0
_STOP_POLL_S = 0.25
_STOP = "stop"


@dataclass(frozen=True)
class Task:
    """A member to train up to the end of a rung."""

    member: Member
    rung: int


class SharedStop(StopRequest):
    """A request to stop that came to any rank of the world."""

    def __init__(self, claims: Claims, own: StopRequest) -> None:
        """`own` hears this rank's signals."""
        super().__init__()
        self._claims, self._own, self._next_look_s = claims, own, 0.0

    @property
    def is_set(self) -> bool:
        """True once a signal has come to any rank, within a quarter of a second."""
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


def open_hand_out(ranks: Ranks, search: Search, known: Known, own_stop: StopRequest) -> HandOut:
    """Return what hands out the members, all ranks knowing of the outcomes that are `known` already. Collective.

    `own_stop` hears this rank's signals.
    """
    claims = open_claims(ranks)
    hand_out = HandOut(search, claims, SharedStop(claims, own_stop), dict(known))
    if ranks.is_root:
        for outcome in known.values():
            hand_out.report(outcome)
    ranks.barrier()
    return hand_out


@dataclass
class HandOut:
    """The members that are still to be trained, seen by the root of one group."""

    search: Search
    claims: Claims
    stop_request: StopRequest
    results: dict[tuple[int, int], Outcome] = field(default_factory=dict)
    _done: set[Stage] = field(default_factory=set)

    def report(self, outcome: Outcome) -> None:
        """Let all groups know what became of a member."""
        self.results[outcome.number, outcome.rung] = outcome
        self.claims.put(_key(outcome.number, outcome.rung), outcome.to_json())

    def next_task(self, group: Ranks) -> Task | None:
        """Return the next task of this group, None where nothing is left or a stop is requested. Collective."""
        while True:
            found = group.broadcast_object(self._claim_within(_LONGEST_WAIT_S) if group.is_root else None)
            if found != "wait":  # the others of the group must not be kept in one collective for hours
                return None if found is None else Task(self.search.members[found[0]], found[1])

    def _claim_within(self, seconds: float) -> tuple[int, int] | str | None:
        end_s = time.monotonic() + seconds
        while not self.stop_request.is_set:
            task, is_open = self._claim()
            if task is not None or not is_open:
                return None if task is None else (task.member.number, task.rung)
            if time.monotonic() >= end_s:
                return "wait"
            time.sleep(_POLL_S)
        return None

    def _claim(self) -> tuple[Task | None, bool]:
        """Return a task if one can be had now, and whether another may come later."""
        is_open = False
        for stage in self.search.stages():
            if stage in self._done:
                continue
            if not self._knows_before(stage):
                is_open = True
                continue
            task = self._claim_of(stage)
            if task is not None:
                return task, True
            self._done.add(stage)
        return None, is_open

    def _knows_before(self, stage: Stage) -> bool:
        """Tell whether all results of the rungs before a stage, which decide on its members, are there."""
        for rung in range(stage.rung):
            members = self.search.members_of(Stage(stage.block, rung), self.results)
            if not self._fetch((member.number, rung) for member in members):
                return False
        return True

    def _fetch(self, needed: Iterable[tuple[int, int]]) -> bool:
        """Learn the results of `needed`; return whether all are there."""
        missing = [one for one in needed if one not in self.results]
        if missing and not self.claims.has([_key(*one) for one in missing]):
            return False
        for one in missing:
            self.results[one] = Outcome.from_json(self.claims.get(_key(*one)))
        return True

    def _claim_of(self, stage: Stage) -> Task | None:
        members = self.search.members_of(stage, self.results)
        while (place := self.claims.take(f"claim {stage.block} {stage.rung}")) < len(members):
            member = members[place]
            if not self.claims.has([_key(member.number, stage.rung)]):
                return Task(member, stage.rung)
        return None

    def all_results(self) -> dict[tuple[int, int], Outcome]:
        """Return what is known of all members, on all rungs that they reached."""
        for member in self.search.members:
            for rung in range(len(self.search.rungs)):
                self._fetch([(member.number, rung)])
        return dict(self.results)


@dataclass
class Progress:
    """Says now and then how many members have ended. The count is of all groups."""

    ranks: Ranks
    claims: Claims
    num_members: int
    _said_s: float = field(default_factory=time.monotonic)

    def count(self, group: Ranks) -> None:
        """Count one more; the world's root speaks, at most every ten seconds."""
        if not group.is_root:
            return
        number = self.claims.take("ended") + 1
        if time.monotonic() - self._said_s >= 10 and number < self.num_members:
            self._said_s = time.monotonic()
            self.ranks.say(f"{number} of {self.num_members} members trained", error=True)


def _key(number: int, rung: int) -> str:
    return json.dumps(["result", number, rung])
