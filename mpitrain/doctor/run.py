"""`mpitrain doctor`: static checks, then, if a launcher started ranks, checks between them, all with time limits."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mpitrain.cluster import Place, read_place
from mpitrain.config import OutputSection, RunConfig
from mpitrain.doctor import files, installation, machine
from mpitrain.doctor.check_result import CheckResult, exit_code_of, render
from mpitrain.doctor.steps import END_LIMIT_S, DoctorRequest, Steps, open_steps
from mpitrain.errors import UserError

if TYPE_CHECKING:
    from mpitrain.data import Selection

_LIMIT_S = 25.0

Check = Callable[[], CheckResult | Iterable[CheckResult]]


def run_doctor(request: DoctorRequest, environ: Mapping[str, str] = os.environ) -> int:
    """Run all checks, print one table on rank 0, return the exit code: 0, 2 (the user's input) or 3 (launch, network).

    Ends within the time limits even if other ranks hang: the node's agent then kills this process. Raises UserError
    for a time limit that is not positive.
    """
    if not request.timeout_s > 0:
        raise UserError(f"--timeout {request.timeout_s:g}: give the time limit of a step in seconds, more than 0")
    # A copy of the user's environment: reading data sets variables of the libraries.
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
        results, config = run_static_checks(request, environ)
    if place.problem:
        reason, _, fix = place.problem.partition("; ")
        results.insert(0, CheckResult("launcher's variables", "fail", reason, fix))
    return results, config


def _end_alone(place: Place, steps: Steps, request: DoctorRequest, results: Sequence[CheckResult]) -> int:
    """End a process without collective checks: rank 0 prints the table, or another rank if rank 0 does not."""
    num_ranks = place.world_size if place.is_launched and not place.problem else None
    steps.enter("end", request.static_limit_s + END_LIMIT_S, leaves=True)
    steps.print_once(render(results, num_ranks, request.as_json), request.static_limit_s)
    return exit_code_of(results)


def run_static_checks(request: DoctorRequest, environ: Mapping[str, str]) -> tuple[list[CheckResult], RunConfig | None]:
    """Run all checks that need neither MPI nor other ranks; return the results, and the settings if they load.

    Loads neither torch nor mpi4py into this process. Each check gets at most `request.timeout_s` seconds.
    """
    config: RunConfig | None = None

    def check_config() -> CheckResult:
        nonlocal config
        result, config = files.check_config(request.config_path, request.overrides, request.trust_code)
        return result

    def select() -> Selection:
        from mpitrain.data import selection_of  # loads numpy

        assert config is not None
        return selection_of(config)

    limit_s = min(request.timeout_s, _LIMIT_S)
    checks: list[tuple[str, Check]] = [
        ("Python", installation.check_python),
        ("packages", installation.check_packages),
        ("torch build", installation.check_torch_build),
        ("MPI library", lambda: installation.check_mpi(environ, installation.probe_mpi())),
        ("C++ compiler", lambda: machine.check_compiler(environ)),
        ("C++ program", machine.check_native_toolchain),
        ("scheduler", lambda: machine.check_scheduler(environ)),
        ("cores", lambda: machine.check_cores(environ)),
        ("memory", machine.check_memory),
        ("clock", machine.check_clock),
        ("host name", machine.check_host_name),
        ("config", check_config),
    ]
    results = [result for name, check in checks for result in run_limited(name, check, limit_s)]
    if config is not None:
        for name, check in _input_checks(config.data.entries, select, config.output, environ):
            results += run_limited(name, check, limit_s)
    return results, config


def _input_checks(
    entries: Sequence[str], select: Callable[[], Selection], output: OutputSection, environ: Mapping[str, str]
) -> list[tuple[str, Check]]:
    folder = Path(output.model_dir)
    return [
        ("HDF5 locking", lambda: files.check_locking(entries, folder, environ)),
        ("data file", lambda: files.check_data(entries, select)),
        ("run folder", lambda: files.check_run_folder(folder, output.model_file)),
        ("disk space", lambda: files.check_disk(folder)),
    ]


def run_limited(name: str, check: Check, limit_s: float) -> list[CheckResult]:
    """Run one check in its own thread; a check that exceeds the limit or raises counts as failed; others still run."""
    results: list[CheckResult] = []
    problem = ""

    def work() -> None:
        nonlocal problem
        try:
            found = check()
            results.extend([found] if isinstance(found, CheckResult) else list(found))
        except Exception as error:  # an exception in one check must not prevent the others
            problem = f"{type(error).__name__}: {error}"

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        fix = "a file system or program does not respond: try it by hand (ls, df) on this host"
        return [CheckResult(name, "fail", f"did not end within {limit_s:g} s", fix)]
    if problem:
        return [*results, CheckResult(name, "fail", f"the check itself failed: {problem}", "report this as a bug")]
    return results
