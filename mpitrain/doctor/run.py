"""`mpitrain doctor`: static checks, then, where a launcher started ranks, the checks between them. It always ends."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from mpitrain.cluster.place import Place, read_place
from mpitrain.comm.supervision.status_folder import open_status_folder, print_once
from mpitrain.config import RunConfig
from mpitrain.doctor.check_result import CheckResult, exit_code_of, render
from mpitrain.doctor.request import END_LIMIT_S, DoctorRequest
from mpitrain.doctor.static_checks import run_static_checks
from mpitrain.doctor.supervision.heartbeat import Heartbeat, start_heartbeat
from mpitrain.errors import UserError


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
    status = open_status_folder(environ, place.rank, place.is_launched, place.is_one_node)
    heartbeat = start_heartbeat(status, place.world_size, place.is_one_node, request.timeout_s, request.as_json)
    heartbeat.enter("static checks", request.static_limit_s)
    results, config = _static_results(place, request, environ)
    heartbeat.tell_results(results)
    if place.problem or request.static_only or not place.is_launched:
        return _end_alone(place, heartbeat, request, results)
    from mpitrain.doctor.collective_checks import run_collective_checks  # loads torch

    return run_collective_checks(place, heartbeat, request, results, config, environ)


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


def _end_alone(place: Place, heartbeat: Heartbeat, request: DoctorRequest, results: Sequence[CheckResult]) -> int:
    """End a process that checked nothing with the others: rank 0 prints, the others only if it does not."""
    num_ranks = place.world_size if place.is_launched and not place.problem else None
    heartbeat.leave(request.static_limit_s + END_LIMIT_S)
    print_once(heartbeat.status, place.rank, render(results, num_ranks, request.as_json), request.static_limit_s)
    if place.rank == 0 and len(heartbeat.status.read()) >= place.world_size:
        heartbeat.status.remove()
    return exit_code_of(results)
