"""Run a command on several ranks under MPI's own launcher, and say what went wrong."""

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

    `launcher`: the path of mpirun, for ranks on this machine; or words such as `srun --mpi=pmi2`, which start ranks on
    other nodes too, whose cores are not known here. Each rank gets `variables` where the environment does not have
    them. Raises UserError or LaunchError with the program's own message where its exit code says so, else MpitrainError
    if it fails or does not end in `timeout_s` seconds.
    """
    words = [launcher, "-np"] if isinstance(launcher, str) else [*launcher, "-n"]
    num_here = num_ranks if isinstance(launcher, str) else 1
    return run_command([*words, str(num_ranks), *command], num_here, timeout_s, variables)


def run_command(
    command: Sequence[str], num_ranks: int, timeout_s: float | None = 1800.0,
    variables: Mapping[str, str] | None = None, accepted_codes: Sequence[int] = (0,),
) -> str:  # fmt: skip
    """Run a launcher's `command`, which starts `num_ranks` ranks on this machine, and return its standard output.

    None: without a limit of time. Its exit code must be one of `accepted_codes`. Raises as `run_under_mpi` does.
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
        raise MpitrainError(f"no end after {timeout_s:g} s: {' '.join(command)}") from error
    if done.returncode not in accepted_codes:
        raise _error_of(done, command)
    return done.stdout


@contextmanager
def _leaving_nothing_behind() -> Iterator[None]:
    """Let SIGTERM raise SystemExit here, so that the process ends what it has started: else that would run on."""
    if threading.current_thread() is not threading.main_thread():  # which alone hears signals
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
    """Return the line of JSON in a program's output. Raises MpitrainError where there is none."""
    # The launcher, or an MPI library, may write lines of its own.
    found = next((line for line in output.splitlines() if line.startswith("{")), None)
    if found is None:
        raise MpitrainError(f"no line of JSON in a program's output: {output[-200:]!r}")
    return found


def _error_of(done: subprocess.CompletedProcess[str], command: Sequence[str]) -> MpitrainError:
    lines = done.stderr.splitlines()
    message = next((line.partition(_MARK)[2] for line in lines if _MARK in line), "")
    # Both programs give their exit codes the same meaning.
    kind = {UserError.exit_code: UserError, LaunchError.exit_code: LaunchError}.get(done.returncode)
    if kind and message:
        return kind(message)
    last = message or (lines[-1] if lines else "no message")
    return MpitrainError(f"exit code {done.returncode} of `{' '.join(command)}`: {last}")


def _environment(num_ranks: int) -> dict[str, str]:
    ours = {"OMP_NUM_THREADS": "1"}
    if num_ranks > detect_usable_core_count():
        # Open MPI refuses this unless it is told. Waiting ranks of MPICH must sleep: one that spins holds the core that
        # the rank waited for needs, and a step takes tens of milliseconds.
        ours |= {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
    return {**ours, **finding_package(os.environ), **NO_IMPORTS_FROM_HERE}
