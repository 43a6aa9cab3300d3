"""Run a command on several ranks under MPI's own launcher, and say what went wrong."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from mpitrain.errors import MpitrainError


def run_under_mpi(mpirun: str, num_ranks: int, command: Sequence[str], timeout_s: float = 1800.0) -> str:
    """Run `command` on `num_ranks` ranks and return its standard output.

    Raises MpitrainError with the program's own error line if it fails or does not end in `timeout_s` seconds.
    """
    full = [mpirun, "-np", str(num_ranks), *command]
    try:
        done = subprocess.run(
            full,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MpitrainError(f"no end after {timeout_s:g} s: {' '.join(full)}") from error
    if done.returncode != 0:
        ours = [line for line in done.stderr.splitlines() if "error:" in line] or done.stderr.splitlines()[-1:]
        raise MpitrainError(f"exit code {done.returncode} of `{' '.join(full)}`: {ours[0] if ours else 'no message'}")
    return done.stdout


def _environment() -> dict[str, str]:
    # Verification may need more ranks than there are cores, which Open MPI refuses unless it is told.
    return {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMP_NUM_THREADS": "1", **os.environ}
