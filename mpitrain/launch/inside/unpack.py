"""The ranks' Python environment, unpacked on the local disk of each host and removed at the end of the job.

A rank looks up tens of thousands of paths while Python loads torch. With a thousand ranks all these look-ups reach the
shared file system's metadata server at once; an archive is one file, which each host reads once from end to end.

`python -m mpitrain.launch.inside.unpack ARCHIVE FOLDER` unpacks it on one host.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import gethostname

from mpitrain.errors import LaunchError

_REMOVE_TIMEOUT_S = 60


@contextmanager
def unpacked(archive: str, job: str, once_a_host: Sequence[str], environ: dict[str, str]) -> Iterator[Path]:
    """Unpack `archive` on each host, yield the path of its Python, and remove it at the end of the block.

    `once_a_host` is a launcher that starts the command after it once on each host. The folder is created in
    $NODE_FOLDER or $TMPDIR, which must be the same path on each host. Raises SystemExit with the exit code of
    LaunchError if a host fails; that host has printed the reason.
    """
    place = environ.get("NODE_FOLDER") or environ.get("TMPDIR") or "/tmp"  # noqa: S108
    folder = Path(place) / f"mpitrain-environment-{job}"
    done = subprocess.run([*once_a_host, sys.executable, "-m", __name__, archive, folder], env=environ)
    if done.returncode:
        raise SystemExit(LaunchError.exit_code)
    environ["PATH"] = f"{folder / 'bin'}:{environ['PATH']}"
    try:
        yield folder / "bin" / "python"
    finally:
        with suppress(subprocess.TimeoutExpired):
            subprocess.run([*once_a_host, "rm", "-rf", folder], env=environ, timeout=_REMOVE_TIMEOUT_S)


def unpack_here(archive: str, folder: Path) -> None:
    """Unpack `archive` into `folder` on this host, once. Raises LaunchError."""
    if not os.access(archive, os.R_OK):
        raise LaunchError(
            f"{archive} on {gethostname()}: cannot be read; create it with: tar -C ENVIRONMENT -cf {archive} ."
        )
    _make_own(folder)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".unpacked").exists():
            _unpack(archive, folder)
            (folder / ".unpacked").touch()


def _make_own(folder: Path) -> None:
    """Create a folder that no other user can write to: its name is predictable, and its programs are executed."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_own = folder.lstat().st_uid == os.geteuid() and not folder.is_symlink()
    except OSError:
        raise LaunchError(
            f"{folder} on {gethostname()}: cannot be created; set NODE_FOLDER to a writable folder of the host"
        ) from None
    if not is_own:
        raise LaunchError(f"{folder} on {gethostname()}: belongs to another user; set NODE_FOLDER to another folder")


def _unpack(archive: str, folder: Path) -> None:
    if subprocess.run(["tar", "-xf", archive, "-C", folder]).returncode:  # noqa: S607
        raise LaunchError(
            f"{archive} on {gethostname()}: cannot be unpacked into {folder}; check that it is complete and the disk "
            "has enough space"
        )
    python, conda_unpack = folder / "bin" / "python", folder / "bin" / "conda-unpack"
    if not os.access(python, os.X_OK):
        raise LaunchError(
            f"{archive} on {gethostname()}: contains no bin/python; create it with: tar -C ENVIRONMENT -cf {archive} ."
        )
    if conda_unpack.exists():  # from conda-pack: it corrects the paths in the unpacked files
        subprocess.run([python, conda_unpack], check=True)


if __name__ == "__main__":
    try:
        unpack_here(sys.argv[1], Path(sys.argv[2]))
    except LaunchError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
