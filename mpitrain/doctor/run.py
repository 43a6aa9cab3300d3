"""`mpitrain doctor`: static checks, then, where a launcher started ranks, the checks between them. It always ends."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from mpitrain.cluster import Place, read_place
from mpitrain.config import RunConfig
from mpitrain.doctor.check_result import CheckResult, exit_code_of, render
from mpitrain.doctor.static_checks import run_static_checks
from mpitrain.doctor.steps import END_LIMIT_S, DoctorRequest, Steps, open_steps
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
    steps = open_steps(place, request, environ)
    steps.enter("static checks", request.static_limit_s)
    results, config = _static_results(place, request, environ)
    steps.keep(results)
    if place.problem or request.static_only or not place.is_launched:
        return _end_alone(place, steps, request, results)
    from mpitrain.doctor.collective_checks import run_collective_checks  # loads torch

    return run_collective_checks(place, steps, request, results, config, environ)


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


def _end_alone(place: Place, steps: Steps, request: DoctorRequest, results: Sequence[CheckResult]) -> int:
    """End a process that checked nothing with the others: rank 0 prints, the others only if it does not."""
    num_ranks = place.world_size if place.is_launched and not place.problem else None
    steps.enter("end", request.static_limit_s + END_LIMIT_S, leaves=True)
    steps.print_once(render(results, num_ranks, request.as_json), request.static_limit_s)
    return exit_code_of(results)
