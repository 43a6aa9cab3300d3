"""Where the ranks leave word of each other without MPI or a network: small files in one folder of this launch.

A rank that hangs inside MPI cannot be asked over MPI; what it wrote here before tells the others where it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpitrain.cluster.launchers import SHELL_STEP_IDS, is_set
from mpitrain.cluster.place import parent_process

# Marks in the status folder: something is wrong, somebody reports it, the report has been printed.
TROUBLE, REPORTER, PRINTED = "trouble", "reporter", "printed"

_RANK_VARIABLES = (
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "PALS_RANKID",
    "FLUX_TASK_RANK",
    "RANK",
    "SLURM_PROCID",
)
_OLDEST_POST_S = 600.0
_POLL_S = 0.05
_ROOT_COMES_WITHIN_S = 5.0


@dataclass(frozen=True)
class StatusFolder:
    """One launch's folder, as rank `rank` uses it."""

    folder: Path
    rank: int

    def post(self, **fields: Any) -> None:
        """Replace this rank's note; readers see the old one or the new one, never a half."""
        with contextlib.suppress(FileNotFoundError):  # removed: everything has been said
            write_note(self.folder, f"rank-{self.rank:06d}", fields)

    def read(self) -> dict[int, dict[str, Any]]:
        """Return every rank's note that is not left over from an earlier launch."""
        with contextlib.suppress(OSError):
            (self.folder / f"look-{self.rank:06d}").touch()  # NFS looks into a folder anew after a change of one's own
        notes = {}
        for path in sorted(self.folder.glob("rank-*.json")):
            try:
                if time.time() - path.stat().st_mtime < _OLDEST_POST_S:
                    notes[int(path.stem.removeprefix("rank-"))] = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue
        return notes

    def claim(self, name: str) -> bool:
        """Tell whether this caller is the first to claim `name`."""
        try:
            (self.folder / name).open("x").close()
        except OSError:
            return False
        return True

    def has(self, name: str) -> bool:
        """Tell whether `name` was claimed."""
        return (self.folder / name).exists()

    def wait_for(self, name: str, limit_s: float) -> bool:
        """Wait until `name` is claimed, or the folder removed, which comes last; False if neither was in time."""
        return wait_until(lambda: self.has(name) or not self.folder.exists(), limit_s)

    def wait_for_removal(self, limit_s: float) -> None:
        """Wait until the folder is gone, or the limit has passed."""
        wait_until(lambda: not self.folder.exists(), limit_s)

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def write_note(folder: Path, name: str, note: Mapping[str, Any]) -> None:
    """Replace a note; readers see the old one or the new one, never a half. Raises OSError."""
    half = folder / f"{name}.{os.getpid()}.{threading.get_ident()}"
    half.write_text(json.dumps(note), encoding="utf-8")
    half.replace(folder / f"{name}.json")


def wait_until(is_so: Callable[[], bool], limit_s: float) -> bool:
    """Look again and again until it is so; False where it was not within the limit."""
    deadline_s = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True


def open_status_folder(
    environ: Mapping[str, str], rank: int, is_launched: bool, is_one_node: bool, purpose: str = "doctor"
) -> StatusFolder:
    """Return this launch's status folder: in the temporary folder for one node, in the current one for several."""
    name = folder_name(environ, purpose)
    bases = (tempfile.gettempdir(),) if is_one_node else (os.getcwd(), tempfile.gettempdir())
    for folder in (Path(base) / name for base in bases if is_launched):
        try:
            make_private_folder(folder)
            (folder / f"look-{rank:06d}").touch()
        except OSError:
            continue
        return StatusFolder(folder, rank)
    return StatusFolder(Path(tempfile.mkdtemp(prefix=f"mpitrain-{purpose}-")), rank)


def folder_name(environ: Mapping[str, str], purpose: str) -> str:
    """Return the name of this launch's folder: the same on all its ranks, another for another launch or user."""
    return f".mpitrain-{purpose}-{os.getuid()}-{hashlib.sha256(launch_identity(environ).encode()).hexdigest()[:12]}"


def make_private_folder(folder: Path) -> None:
    """Make a folder that only this user reads and writes. Raises OSError where another user's stands in its place."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} is not this user's own folder")


def print_once(status: StatusFolder, rank: int, text: str, limit_s: float) -> None:
    """Print on rank 0; any other rank waits for that, since the launcher ends all ranks when one ends with an error."""
    if rank == 0 or not status.wait_for(PRINTED, limit_s if 0 in status.read() else _ROOT_COMES_WITHIN_S):
        sys.stdout.write(text)
        sys.stdout.flush()
        status.claim(PRINTED)


def launch_identity(environ: Mapping[str, str]) -> str:
    """Return a text that all ranks of this launch have in common, and no other launch."""
    if is_set(environ, "PMIX_NAMESPACE"):
        return environ["PMIX_NAMESPACE"]
    if is_set(environ, "SLURM_STEP_NUM_TASKS") and environ.get("SLURM_STEP_ID") not in SHELL_STEP_IDS:
        return f"slurm {environ.get('SLURM_JOB_ID')}.{environ.get('SLURM_STEP_ID')}"
    if is_set(environ, "MASTER_ADDR") and is_set(environ, "RANK"):
        return f"torch {environ['MASTER_ADDR']}:{environ.get('MASTER_PORT')} {environ.get('TORCHELASTIC_RUN_ID')}"
    return _identity_of_launcher(environ)


def _identity_of_launcher(environ: Mapping[str, str]) -> str:
    """Name the process that started the ranks."""
    pid = launcher_pid(environ)
    words = _read(pid, "cmdline").split(b"\0")
    # MPICH starts one helper a node: all of them call back at one port of mpirun.
    if b"--control-port" in words[:-1]:
        return words[words.index(b"--control-port") + 1].decode(errors="replace")
    return f"process {pid} of {process_stat(pid)[19:20]}"


def launcher_pid(environ: Mapping[str, str]) -> int:
    """Return the process that started this rank: the nearest ancestor that is not the rank itself or its wrapper."""
    name = next((name for name in _RANK_VARIABLES if is_set(environ, name)), "")
    own = f"{name}={environ.get(name, '')}".encode()
    pid = parent_process()
    while pid > 1 and own in _read(pid, "environ").split(b"\0"):
        pid = int(process_stat(pid)[1])
    return pid


def process_born(pid: int) -> str:
    """Return when a process began, as the system counts: with it a number that was given again is told apart.

    Empty where there is no such process, or only what is left of one.
    """
    fields = process_stat(pid)
    return "" if fields[0] in "?ZX" else fields[19]


# An emulator tells its program another moment than the system tells everybody else, a little later.
_SAME_WITHIN_S = 2.0


def has_ended(pid: int, born: str) -> bool:
    """Tell whether the process that began at `born` is no more, though another one may have its number."""
    now = process_born(pid)
    if not (now.isdigit() and born.isdigit()):
        return now != born
    return abs(int(now) - int(born)) > _SAME_WITHIN_S * os.sysconf("SC_CLK_TCK")


def process_state(pid: int) -> str:
    """Return what keeps a process from running, for a message: stopped, waits for a disk, gone; else empty."""
    return {"T": "stopped", "t": "stopped", "D": "waits for a disk"}.get(
        process_stat(pid)[0], "" if process_born(pid) else "gone"
    )


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def process_stat(pid: int) -> list[str]:
    """Return the system's facts of a process, its state first and its parent next; `?` and 0 where there is none."""
    # The name, in brackets, may hold anything.
    return _read(pid, "stat").decode(errors="replace").rpartition(")")[2].split() or ["?", "0"]
