"""All static checks in order, each within a time limit of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mpitrain.config import OutputSection, RunConfig
from mpitrain.doctor import files, installation, machine
from mpitrain.doctor.check_result import CheckResult

if TYPE_CHECKING:
    from mpitrain.data import Selection

_LIMIT_S = 25.0

Check = Callable[[], CheckResult | Iterable[CheckResult]]


def run_static_checks(
    path: Path | None, overrides: Sequence[str], environ: Mapping[str, str], limit_s: float
) -> tuple[list[CheckResult], RunConfig | None]:
    """Run every check that needs neither MPI nor other ranks; return the results and the settings, if they load.

    Loads neither torch nor mpi4py into this process. Each check gets at most `limit_s` seconds.
    """
    config: RunConfig | None = None

    def check_config() -> CheckResult:
        nonlocal config
        result, config = files.check_config(path, overrides)
        return result

    def select() -> Selection:
        from mpitrain.data import selection_of  # loads numpy

        assert config is not None
        return selection_of(config)

    limit_s = min(limit_s, _LIMIT_S)
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
    """Run one check in a thread of its own; a check that does not end, or breaks, is a failure and not our end."""
    results: list[CheckResult] = []
    problem = ""

    def work() -> None:
        nonlocal problem
        try:
            found = check()
            results.extend([found] if isinstance(found, CheckResult) else list(found))
        except Exception as error:  # a broken check must not hide the others
            problem = f"{type(error).__name__}: {error}"

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        fix = "a file system or program does not answer: try the same by hand (ls, df) on this host"
        return [CheckResult(name, "fail", f"did not end within {limit_s:g} s", fix)]
    if problem:
        return [*results, CheckResult(name, "fail", f"the check itself broke: {problem}", "report this as a bug")]
    return results
