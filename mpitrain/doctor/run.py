"""`mpitrain doctor`: static checks, then, where a launcher started ranks, the checks between them. It always ends."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mpitrain.cluster.inherited import without_inherited
from mpitrain.cluster.launchers import claimed_rank, read_claims
from mpitrain.config import RunConfig
from mpitrain.doctor.check_result import CheckResult, exit_code_of
from mpitrain.doctor.static_checks import run_static_checks
from mpitrain.doctor.supervision.heartbeat import Patrol, start_patrol
from mpitrain.doctor.supervision.status_folder import open_board, print_once
from mpitrain.doctor.table import render
from mpitrain.errors import LaunchError, UserError

_END_LIMIT_S = 20.0


@dataclass(frozen=True)
class DoctorRequest:
    """What the command line asks for; `timeout_s` limits each step between the ranks."""

    config_path: Path | None = None
    overrides: tuple[str, ...] = ()
    as_json: bool = False
    timeout_s: float = 60.0
    static_only: bool = False

    @property
    def static_limit_s(self) -> float:
        """Time limit of all static checks together, for which the other ranks wait."""
        return 2 * self.timeout_s + 30


@dataclass(frozen=True)
class Place:
    """What the launcher's variables say of this process; `problem` is what is wrong with them."""

    rank: int
    world_size: int
    is_launched: bool
    is_one_node: bool
    problem: str = ""


def run_doctor(request: DoctorRequest, environ: Mapping[str, str] = os.environ) -> int:
    """Check, print one table (rank 0), and return the exit code: 0, 2 (the user's input) or 3 (launch, network).

    Ends within the time limits whatever the other ranks do: this process is killed if it must be. Raises UserError for
    a time limit that is none.
    """
    if not request.timeout_s > 0:
        raise UserError(f"--timeout {request.timeout_s:g}: give the seconds that a step may take, more than 0")
    # As the user left it: reading data sets variables of the libraries.
    environ = dict(environ)
    place = read_place(environ)
    board = open_board(environ, place.rank, place.is_launched, place.is_one_node)
    patrol = start_patrol(board, place.world_size, place.is_one_node, request.timeout_s, request.as_json)
    patrol.enter("static checks", request.static_limit_s)
    results, config = _static_results(place, request, environ)
    patrol.tell_results(results)
    if place.problem or request.static_only or not place.is_launched:
        return _end_alone(place, patrol, request, results)
    from mpitrain.doctor.collective_checks import run_collective_checks

    return run_collective_checks(place, patrol, request, results, config, environ)


def read_place(environ: Mapping[str, str]) -> Place:
    """Read what the launcher says: before MPI is started, which may already hang."""
    try:
        claims = without_inherited(read_claims(environ), environ)
    except LaunchError as error:
        return Place(claimed_rank(environ), 1, True, True, str(error))
    told = [claim for claim in claims if claim.rank is not None]
    largest = max(told, key=lambda claim: claim.world_size or 1, default=None)
    if largest is None:
        return Place(0, 1, False, True)
    world_size = largest.world_size or 1
    return Place(
        largest.rank or 0,
        world_size,
        True,
        is_one_node=largest.num_nodes == 1 or (largest.local_world_size or world_size) == world_size,
    )


def _static_results(
    place: Place, request: DoctorRequest, environ: Mapping[str, str]
) -> tuple[list[CheckResult], RunConfig | None]:
    results: list[CheckResult] = []
    config = None
    if place.rank == 0:
        results, config = run_static_checks(request.config_path, request.overrides, environ, request.timeout_s)
    if place.problem:
        what, _, fix = place.problem.partition("; ")
        results.insert(0, CheckResult("launcher's variables", "fail", what, fix))
    return results, config


def _end_alone(place: Place, patrol: Patrol, request: DoctorRequest, results: Sequence[CheckResult]) -> int:
    """End a process that checked nothing with the others: rank 0 prints, the others only if it does not."""
    num_ranks = place.world_size if place.is_launched and not place.problem else None
    patrol.leave(request.static_limit_s + _END_LIMIT_S)
    print_once(patrol.board, place.rank, render(results, num_ranks, request.as_json), request.static_limit_s)
    if place.rank == 0 and len(patrol.board.read()) >= place.world_size:
        patrol.board.remove()
    return exit_code_of(results)
