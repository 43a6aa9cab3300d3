"""The folder of a launch: its name, which each rank derives without communication, its owner, and its notes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from mpitrain.cluster import is_set
from mpitrain.cluster.launchers import RANK_VARIABLES, SHELL_STEP_IDS
from mpitrain.comm.agent import FORWARD_S
from mpitrain.comm.agent.processes import process_stat, read_of_process

Note = dict[str, Any]
SPOKEN, SAID = "spoken", "said"

_POLL_S = 0.05
_NUM_NAMES = 8  # other users may have created some of them


def open_private_folder(base: Path, name: str) -> Path:
    """Return a folder that only this user can read and write: `name`, or `name-2` etc. if another user has created it.

    All ranks of a launch return the same folder. Raises OSError if none can be created.
    """
    names = [base / name, *(base / f"{name}-{number}" for number in range(2, _NUM_NAMES + 1))]
    # Prefer an existing folder of this user under any name: another user may have removed an earlier name since.
    found = next((folder for folder in names if is_private(folder)), None)
    for folder in [found] if found else names:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        if is_private(folder):
            return folder
    raise PermissionError(f"another user owns {names[0]} and the names with a number after it")


def is_private(folder: Path) -> bool:
    """Return whether this is a folder (not a symbolic link) that only this user can read and write."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o077


def write_note(folder: Path, name: str, note: Mapping[str, Any]) -> None:
    """Replace a note atomically. Raises OSError."""
    if not is_private(folder):
        raise PermissionError(f"{folder} is not a private folder of this user")
    half = folder / f"{name}.{os.getpid()}.{threading.get_ident()}"
    half.write_text(json.dumps(note), encoding="utf-8")
    half.replace(folder / f"{name}.json")


def read_notes(folder: Path) -> dict[int, Note]:
    """Return the notes of the ranks of a node, in rank order; `silent_s` is the age of each note."""
    notes: dict[int, Note] = {}
    for path in folder.glob("rank-*.json") if is_private(folder) else ():
        with contextlib.suppress(OSError, ValueError):
            note = _read_own(path)
            notes[int(note["rank"])] = {**note, "silent_s": time.monotonic() - note["told_s"]}
    return dict(sorted(notes.items()))


def read_shared_notes(folder: Path) -> dict[int, Note]:
    """Return the notes of all nodes' ranks, which the agents have copied to `folder`."""
    found: list[tuple[float, dict[str, Note]]] = []
    for path in folder.glob("node-*.json") if is_private(folder) else ():
        with contextlib.suppress(OSError, ValueError):
            found.append((path.stat().st_mtime, _read_own(path)))
    newest_s = max((written_s for written_s, _ in found), default=0.0)  # all times are by the file server's clock
    return {
        int(rank): {**note, "silent_s": note["silent_s"] + newest_s - written_s}
        for written_s, of_node in found
        for rank, note in of_node.items()
    }


def _read_own(path: Path) -> Note:
    """Return a note that this user owns. Raises OSError, and ValueError if it is not JSON."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), encoding="utf-8") as file:
        if os.fstat(file.fileno()).st_uid != os.getuid():
            raise PermissionError(f"{path} belongs to another user")
        note: Note = json.load(file)
    return note


def claim_in(folders: Iterable[Path], name: str) -> bool:
    """Claim `name` in these folders; return False if another process has claimed it, True also if that is unknown."""
    try:
        for folder in folders:
            (folder / name).open("x").close()
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


def mark_said(folders: Iterable[Path]) -> None:
    """Wait until the launcher has had time to read the first error, then record in the folders that ranks may end."""
    time.sleep(FORWARD_S)
    for folder in folders:
        with contextlib.suppress(OSError):
            (folder / SAID).touch()


def wait_until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Poll until `condition()` is true; return False if it is not within `limit_s`."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True


def folder_name(identity: str, purpose: str, host: str = "") -> str:
    """Return the name of a launch's folder: the same on all its ranks, different for other launches and users.

    With `host` it is also different for each node: TMPDIR may be on a file system that all nodes share.
    """
    launch = hashlib.sha256(f"{identity}{host and f' on {host}'}".encode()).hexdigest()[:12]
    return f".mpitrain-{purpose}-{os.getuid()}-{launch}"


def launch_identity(environ: Mapping[str, str]) -> str:
    """Return a text that is the same on all ranks of this launch and different for other launches."""
    if is_set(environ, "PMIX_NAMESPACE"):
        return environ["PMIX_NAMESPACE"]
    if is_set(environ, "SLURM_STEP_NUM_TASKS") and environ.get("SLURM_STEP_ID") not in SHELL_STEP_IDS:
        return f"slurm {environ.get('SLURM_JOB_ID')}.{environ.get('SLURM_STEP_ID')}"
    if is_set(environ, "MASTER_ADDR") and is_set(environ, "RANK"):
        return f"torch {environ['MASTER_ADDR']}:{environ.get('MASTER_PORT')} {environ.get('TORCHELASTIC_RUN_ID')}"
    return _identity_of_launcher(environ)


def _identity_of_launcher(environ: Mapping[str, str]) -> str:
    """Return a text that identifies the process that started the ranks."""
    pid = launcher_pid(environ)
    arguments = read_of_process(pid, "cmdline").split(b"\0")
    # MPICH starts one proxy per node: all of them connect to one control port of mpirun.
    if b"--control-port" in arguments[:-1]:
        return arguments[arguments.index(b"--control-port") + 1].decode(errors="replace")
    return f"process {pid} of {process_stat(pid)[19:20]}"


def launcher_pid(environ: Mapping[str, str]) -> int:
    """Return the pid of the process that started this rank: the nearest ancestor that is no wrapper of the rank."""
    names = [name for name in RANK_VARIABLES if is_set(environ, name)]
    if len(names) > 1 and not is_set(environ, "TORCHELASTIC_RUN_ID"):
        names = [name for name in names if name != "RANK"]  # set by a wrapper from the launcher's variables
    # Compare all variables: a launcher that runs inside another launcher's step has that step's variables too.
    own = {f"{name}={environ[name]}".encode() for name in names}
    pid = os.getppid()
    while pid > 1 and own and own <= {*read_of_process(pid, "environ").split(b"\0")}:
        pid = int(process_stat(pid)[1])
    return pid
