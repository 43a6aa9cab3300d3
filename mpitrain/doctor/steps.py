"""The doctor's steps: each rank notifies its node's agent of the step that it enters and of its time limit."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpitrain.cluster import Place
from mpitrain.comm.agent.arrival import find_launcher, new_identity, open_watch
from mpitrain.comm.agent.folder import launch_identity, wait_until
from mpitrain.comm.agent.rank_side import NodeWatch
from mpitrain.doctor.check_result import CheckResult

_ROOT_COMES_WITHIN_S, _NOTES_COME_WITHIN_S = 5.0, 2.0
END_LIMIT_S = 20.0


@dataclass
class Steps:
    """The steps of this rank, in the same order on all ranks, each with a time limit that the agent enforces."""

    watch: NodeWatch
    world_size: int
    limit_s: float
    _number: int = 0

    def enter(self, title: str, limit_s: float | None = None, *, leaves: bool = False) -> None:
        """Enter the next step; `leaves` marks the last one, in which the rank may still wait in MPI_Finalize."""
        self._number += 1
        self.watch.check(self._number, title, limit_s or self.limit_s, leaves=leaves)

    def keep(self, results: Sequence[CheckResult]) -> None:
        """Store the results so far for the agent, which prints them if it must report."""
        self.watch.tell(results=[dataclasses.asdict(result) for result in results])

    def notes(self) -> dict[int, dict[str, Any]]:
        """Wait up to two seconds for the notes of all ranks; return those found."""
        wait_until(lambda: len(self.watch.notes()) >= self.world_size, _NOTES_COME_WITHIN_S)
        return self.watch.notes()

    def print_once(self, text: str, limit_s: float) -> None:
        """Print on rank 0; the others wait, because the launcher kills all ranks when one exits with an error.

        Another rank prints the text if rank 0 does not within the time limit.
        """
        limit_s = limit_s if 0 in self.watch.notes() else _ROOT_COMES_WITHIN_S
        if (self.watch.rank == 0 or not self.watch.wait_until_said(limit_s)) and self.watch.claim():
            sys.stdout.write(text)
            sys.stdout.flush()
            self.watch.mark_said()


def open_steps(place: Place, request: DoctorRequest, environ: Mapping[str, str]) -> Steps:
    """Return the steps of this rank; start the node's agent if this rank is the first on the node."""
    order = {"reporter": "mpitrain.doctor.late_ranks", "as_json": request.as_json, "limit_s": request.timeout_s}
    identity = new_identity()
    if place.is_launched:
        identity, order["launcher"] = launch_identity(environ), find_launcher(environ)
    watch = open_watch(place, identity, "doctor", order)
    return Steps(watch, place.world_size, request.timeout_s)


@dataclass(frozen=True)
class DoctorRequest:
    """Options of the command line; `timeout_s` is the time limit of each step between the ranks."""

    config_path: Path | None = None
    overrides: tuple[str, ...] = ()
    as_json: bool = False
    timeout_s: float = 60.0
    static_only: bool = False
    trust_code: bool = False

    @property
    def static_limit_s(self) -> float:
        """Time limit of all static checks together, in seconds, during which the other ranks wait."""
        return 2 * self.timeout_s + 30
