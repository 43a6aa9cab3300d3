"""Send a script to its scheduler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from mpitrain.errors import LaunchError, UserError

_SUBMIT_COMMANDS = {"slurm": ("sbatch", "--parsable"), "pbs": ("qsub",)}
_TIMEOUT_S = 120.0


def submit_command(scheduler: str) -> tuple[str, ...]:
    """Return the words that send a script of `scheduler`. Raises UserError where this host cannot."""
    if scheduler not in _SUBMIT_COMMANDS:
        raise UserError(f"--scheduler {scheduler}: --submit needs slurm, pbs or local; copy the commands to each host")
    words = _SUBMIT_COMMANDS[scheduler]
    if shutil.which(words[0]) is None:
        raise UserError(f"{words[0]}: not found on the PATH; send the job from a login node, or write it with --output")
    return words


def submit_job(scheduler: str, script: str, path: Path | None) -> str:
    """Send `script`, from its file `path` if it was written to one, and return the job's id.

    Raises UserError where the scheduler's command is missing, LaunchError with its first words when it refuses.
    """
    words = submit_command(scheduler)
    try:
        # By standard input otherwise: no temporary file that a crash would leave behind.
        done = subprocess.run(
            [*words, *([str(path)] if path else [])],
            input=None if path else script,
            stdin=subprocess.DEVNULL if path else None,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{words[0]} gave no answer in {_TIMEOUT_S:.0f} s; see whether the job is queued") from None
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()[0]
        raise LaunchError(f"{words[0]} refused the job (exit code {done.returncode}): {said}")
    return done.stdout.strip().partition(";")[0]


def run_here(script: str) -> NoReturn:
    """Become the script: its exit code and its signals are this process's. Does not return."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp("bash", ["bash", "-c", script])  # noqa: S606, S607
