"""Run a command on several ranks under MPI's launcher; failures become exceptions with the command's message."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from mpitrain.cluster import detect_usable_core_count, finding_package
from mpitrain.cluster.own_python import NO_IMPORTS_FROM_HERE
from mpitrain.errors import LaunchError, MpitrainError, UserError

_MARK = "error: "


def run_under_mpi(
    launcher: str | Sequence[str], num_ranks: int, command: Sequence[str], timeout_s: float = 1800.0,
    variables: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """Run `command` on `num_ranks` ranks and return its standard output.

    `launcher`: the path of mpirun, for ranks on this machine, or a command such as `srun --mpi=pmi2` as a list, which
    may start ranks on other nodes, with an unknown number of cores. `variables` are environment variables of the ranks;
    those set in the environment take precedence. Raises UserError or LaunchError with the program's message if its exit
    code indicates these; otherwise MpitrainError if it fails or does not end within `timeout_s` seconds.
    """
    start = [launcher, "-np"] if isinstance(launcher, str) else [*launcher, "-n"]
    num_here = num_ranks if isinstance(launcher, str) else 1
    return run_command([*start, str(num_ranks), *command], num_here, timeout_s, variables)


def run_command(
    command: Sequence[str], num_ranks: int, timeout_s: float | None = 1800.0,
    variables: Mapping[str, str] | None = None, accepted_codes: Sequence[int] = (0,),
) -> str:  # fmt: skip
    """Run a launcher's `command`, which starts `num_ranks` ranks on this machine, and return its standard output.

    `timeout_s` None means no time limit. Raises as `run_under_mpi` does if the exit code is not in `accepted_codes`.
    """
    try:
        with _leaving_nothing_behind():
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                env={**(variables or {}), **_environment(num_ranks)},
                stdin=subprocess.DEVNULL,
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        raise MpitrainError(f"did not end within {timeout_s:g} s: {' '.join(command)}") from error
    if done.returncode not in accepted_codes:
        raise _error_of(done, command)
    return done.stdout


@contextmanager
def _leaving_nothing_behind() -> Iterator[None]:
    """Make SIGTERM raise SystemExit in the block, so that the process it has started is killed and does not run on."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread can set signal handlers
        yield
        return

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def json_line_of(output: str) -> str:
    """Return the first line of JSON in a program's output. Raises MpitrainError if there is none."""
    # The launcher, or an MPI library, may write other lines.
    found = next((line for line in output.splitlines() if line.startswith("{")), None)
    if found is None:
        raise MpitrainError(f"no line of JSON in a program's output: {output[-200:]!r}")
    return found


def _error_of(done: subprocess.CompletedProcess[str], command: Sequence[str]) -> MpitrainError:
    lines = done.stderr.splitlines()
    message = next((line.partition(_MARK)[2] for line in lines if _MARK in line), "")
    # The C++ program uses the same exit codes as this package.
    kind = {UserError.exit_code: UserError, LaunchError.exit_code: LaunchError}.get(done.returncode)
    if kind and message:
        return kind(message)
    last = message or (lines[-1] if lines else "no message")
    return MpitrainError(f"exit code {done.returncode} of `{' '.join(command)}`: {last}")


def _environment(num_ranks: int) -> dict[str, str]:
    ours = {"OMP_NUM_THREADS": "1"}
    if num_ranks > detect_usable_core_count():
        # Open MPI refuses more ranks than cores without this variable. Waiting ranks of MPICH must sleep: one that
        # spins occupies the core that another rank needs, and a step then takes tens of milliseconds.
        ours |= {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
    return {**ours, **finding_package(os.environ), **NO_IMPORTS_FROM_HERE}
