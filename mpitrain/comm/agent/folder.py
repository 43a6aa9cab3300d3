"""The folder of a launch: its name, which all ranks find by themselves, its owner, and the notes in it."""

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
_NUM_NAMES = 8  # another user can hold some of them


def open_private_folder(base: Path, name: str) -> Path:
    """Return a folder that only this user can read and write: `name`, or `name-2` and so on where others hold that.

    All ranks of a launch find the same one. Raises OSError where none can be made.
    """
    names = [base / name, *(base / f"{name}-{number}" for number in range(2, _NUM_NAMES + 1))]
    # A folder of ours under a later name comes first: the holder of the first name may have removed it since.
    found = next((folder for folder in names if is_private(folder)), None)
    for folder in [found] if found else names:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        if is_private(folder):
            return folder
    raise PermissionError(f"another user holds {names[0]} and the names that follow it")


def is_private(folder: Path) -> bool:
    """Tell whether this is a folder, no link to one, that only this user can read and write."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o077


def write_note(folder: Path, name: str, note: Mapping[str, Any]) -> None:
    """Replace a note atomically. Raises OSError."""
    if not is_private(folder):
        raise PermissionError(f"{folder} is not this user's own folder")
    half = folder / f"{name}.{os.getpid()}.{threading.get_ident()}"
    half.write_text(json.dumps(note), encoding="utf-8")
    half.replace(folder / f"{name}.json")


def read_notes(folder: Path) -> dict[int, Note]:
    """Return the notes of the ranks of a node, in rank order; `silent_s` is the age of each."""
    notes: dict[int, Note] = {}
    for path in folder.glob("rank-*.json") if is_private(folder) else ():
        with contextlib.suppress(OSError, ValueError):
            note = _read_own(path)
            notes[int(note["rank"])] = {**note, "silent_s": time.monotonic() - note["told_s"]}
    return dict(sorted(notes.items()))


def read_shared_notes(folder: Path) -> dict[int, Note]:
    """Return the notes of the ranks of all nodes, which the nodes' agents have copied to `folder`."""
    found: list[tuple[float, dict[str, Note]]] = []
    for path in folder.glob("node-*.json") if is_private(folder) else ():
        with contextlib.suppress(OSError, ValueError):
            found.append((path.stat().st_mtime, _read_own(path)))
    newest_s = max((written_s for written_s, _ in found), default=0.0)  # by the file server's clock, like the others
    return {
        int(rank): {**note, "silent_s": note["silent_s"] + newest_s - written_s}
        for written_s, of_node in found
        for rank, note in of_node.items()
    }


def _read_own(path: Path) -> Note:
    """Return a note that this user has written. Raises OSError, and ValueError for one that is no JSON."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), encoding="utf-8") as file:
        if os.fstat(file.fileno()).st_uid != os.getuid():
            raise PermissionError(f"{path} is another user's")
        note: Note = json.load(file)
    return note


def claim_in(folders: Iterable[Path], name: str) -> bool:
    """Tell whether no other process has claimed `name` in these folders; True where that is unknown."""
    try:
        for folder in folders:
            (folder / name).open("x").close()
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


def mark_said(folders: Iterable[Path]) -> None:
    """Note in these folders that the launcher has had time to read the first error: all ranks may be ended."""
    time.sleep(FORWARD_S)
    for folder in folders:
        with contextlib.suppress(OSError):
            (folder / SAID).touch()


def wait_until(is_so: Callable[[], bool], limit_s: float) -> bool:
    """Poll until the condition holds; return False if it does not within the limit."""
    deadline_s = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True


def folder_name(identity: str, purpose: str, host: str = "") -> str:
    """Return the name of a launch's folder: the same on all its ranks, another for another launch or user.

    With a host, of the folder on that node: TMPDIR may be a folder that all nodes see, or the working directory.
    """
    launch = hashlib.sha256(f"{identity}{host and f' on {host}'}".encode()).hexdigest()[:12]
    return f".mpitrain-{purpose}-{os.getuid()}-{launch}"


def launch_identity(environ: Mapping[str, str]) -> str:
    """Return a text that is the same on all ranks of this launch and differs between launches."""
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
    words = read_of_process(pid, "cmdline").split(b"\0")
    # MPICH starts one helper a node: all of them call back at one port of mpirun.
    if b"--control-port" in words[:-1]:
        return words[words.index(b"--control-port") + 1].decode(errors="replace")
    return f"process {pid} of {process_stat(pid)[19:20]}"


def launcher_pid(environ: Mapping[str, str]) -> int:
    """Return the process that started this rank: the nearest ancestor that is not the rank itself or its wrapper."""
    names = [name for name in RANK_VARIABLES if is_set(environ, name)]
    if len(names) > 1 and not is_set(environ, "TORCHELASTIC_RUN_ID"):
        names = [name for name in names if name != "RANK"]  # set by a wrapper, from what the launcher says
    # All of them: a launcher inside of another one's step has the step's own variable too.
    own = {f"{name}={environ[name]}".encode() for name in names}
    pid = os.getppid()
    while pid > 1 and own and own <= {*read_of_process(pid, "environ").split(b"\0")}:
        pid = int(process_stat(pid)[1])
    return pid
