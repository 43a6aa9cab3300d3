"""Static checks of the user's input: settings, data file, file locks, run folder and disk."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mpitrain.config import RunConfig
from mpitrain.doctor.check_result import CheckResult
from mpitrain.errors import MpitrainError, OutputError
from mpitrain.train import RunFolder
from mpitrain.train.folder.settings import load_settings_to_read

if TYPE_CHECKING:
    from mpitrain.data import Selection

_HDF5_START = b"\x89HDF\r\n\x1a\n"
_LOCKING = "HDF5_USE_FILE_LOCKING"
_ENOUGH_BYTES, _LITTLE_BYTES = 1 << 30, 50 << 20
_READ_WHOLE_BYTES = 4 << 30


def check_config(path: Path | None, overrides: Sequence[str], trust_code: bool) -> tuple[CheckResult, RunConfig | None]:
    """Load the settings as a run would; return the result and the settings, None if they are wrong."""
    try:
        loaded = load_settings_to_read(path, overrides, trust_code)
    except MpitrainError as error:
        first, *others = error.args
        problem, _, fix = first.rpartition("; ")
        more = f" (and {len(others)} more: see `mpitrain config check`)" if others else ""
        return CheckResult("config", "fail", (problem or first) + more, fix), None
    if loaded.notices:
        return CheckResult("config", "warn", "; ".join(loaded.notices), "see `mpitrain config show`"), loaded.config
    return CheckResult("config", "pass", str(path) if path else "defaults and command line"), loaded.config


def check_data(entries: Sequence[str], select: Callable[[], Selection]) -> CheckResult:
    """Read the selection that `select` returns as a run would; check variables, shapes and the number of samples."""
    name = "data file"
    if not entries:
        return CheckResult(name, "skip", "data.data_path is not set: a run writes a synthetic file")
    from mpitrain.data import open_source, valid_rows
    from mpitrain.data.samples import concatenate

    files = " ".join(entries)
    try:
        source = open_source(select())
        size_bytes = sum(path.stat().st_size for path in source.paths)
        if size_bytes > _READ_WHOLE_BYTES:
            return CheckResult(name, "pass", f"{files}: {size_bytes / (1 << 30):.1f} GiB, opened, not read completely")
        parts = [source.read(chunk) for chunk in source.chunks]
        num_selected = sum(map(len, parts))
        source.check_selection(num_selected, [num_selected] * len((*source.input_names, *source.target_names)))
        samples = concatenate(parts)
    except MpitrainError as error:
        problem, _, fix = str(error).partition("; ")
        return CheckResult(name, "fail", problem, fix or "give a complete file as data.data_path")
    num_valid = int(valid_rows(samples).sum())
    found = f"{files}: {len(samples)} samples selected, {len(samples) - num_valid} of them without measurements"
    if num_valid == 0:
        return CheckResult(
            name, "fail", found, "no samples remain for training: check domain.* and the variables' fill values"
        )
    return CheckResult(name, "pass", found)


def check_locking(entries: Sequence[str], run_folder: Path, environ: Mapping[str, str]) -> CheckResult:
    """Lock the data file as the HDF5 library does for reading.

    If there is no data file, lock a new file where the run folder is or would be created.
    """
    name, setting = "HDF5 locking", environ.get(_LOCKING, "")
    if setting.upper() in ("FALSE", "0"):
        return CheckResult(name, "pass", f"{_LOCKING}={setting}: HDF5 takes no locks")
    if setting and setting.upper() not in ("TRUE", "1", "BEST_EFFORT"):
        return CheckResult(
            name,
            "fail",
            f"{_LOCKING}={setting}: not a value that HDF5 accepts",
            f"export {_LOCKING}=FALSE (or TRUE, BEST_EFFORT)",
        )
    path = next((Path(entry) for entry in entries if Path(entry).is_file()), None)
    if path is not None:
        return _check_lock_of(path)
    return _check_lock_in(existing_parent(run_folder))


def _check_lock_of(path: Path) -> CheckResult:
    name = "HDF5 locking"
    try:
        with path.open("rb") as file:
            if file.read(8) != _HDF5_START:
                return CheckResult(name, "skip", f"{path} is not an HDF5 file: no lock is taken")
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        fix = (
            f"wait until its writer closes it (`lsof {path}` lists it), or, if it is complete, export {_LOCKING}=FALSE"
        )
        return CheckResult(name, "fail", f"{path} is locked: another process has it open for writing", fix)
    except OSError as error:
        return _lock_failure(path, error)
    return CheckResult(name, "pass", f"{path} can be locked for reading")


def _check_lock_in(folder: Path) -> CheckResult:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            return _lock_failure(folder, error)
        return CheckResult("HDF5 locking", "skip", f"{folder}: no file can be written there ({error.strerror})")
    return CheckResult("HDF5 locking", "pass", f"files in {folder} can be locked")


def _lock_failure(path: Path, error: OSError) -> CheckResult:
    fix = f"this file system does not support locks (Lustre, NFS): export {_LOCKING}=FALSE before the launch"
    return CheckResult("HDF5 locking", "fail", f"{path}: {error.strerror}", fix)


def check_run_folder(folder: Path, model_file: str) -> CheckResult:
    """Write a file where the run folder is or would be created, because permission bits alone are not reliable."""
    name = "run folder"
    fix = "choose another output.model_dir, on a file system that you may write to"
    parent = existing_parent(folder)
    try:
        with tempfile.TemporaryFile(dir=parent):
            pass
        if any((folder / part).exists() for part in ("config.yaml", "checkpoints")):
            problem = f"{folder} holds a run already"
            free = "a run without settings uses the next free folder"
            return CheckResult(name, "warn", problem, f"continue it with --resume, replace it with --overwrite; {free}")
        RunFolder(folder, model_file).check_model_file()
    except OutputError as error:
        problem, _, fix = str(error).rpartition("; ")
        return CheckResult(name, "fail", problem, fix)
    except OSError as error:
        return CheckResult(name, "fail", f"{folder}: cannot be written ({error.strerror} in {parent})", fix)
    return CheckResult(name, "pass", f"{folder} can be written")


def check_disk(run_folder: Path) -> CheckResult:
    """Check the free space where the run folder is or would be created."""
    parent = existing_parent(run_folder)
    try:
        free = shutil.disk_usage(parent).free
    except OSError as error:
        return CheckResult("disk space", "skip", f"{parent}: {error.strerror}")
    found = f"{free / (1 << 30):.1f} GiB free in {parent}"
    fix = "delete old runs, or choose another output.model_dir"
    if free < _LITTLE_BYTES:
        return CheckResult("disk space", "fail", found, fix)
    return CheckResult("disk space", "warn" if free < _ENOUGH_BYTES else "pass", found, fix)


def existing_parent(folder: Path) -> Path:
    """Return the absolute path of the nearest existing folder (or file) at or above `folder`."""
    path = Path(os.path.abspath(folder))
    with contextlib.suppress(OSError):
        while not path.exists() and path != path.parent:
            path = path.parent
    return path
