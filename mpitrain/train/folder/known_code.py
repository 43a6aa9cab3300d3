"""Record of the files of runs that name code and were written by this user's training: their code is trusted.

The record is in the user's own configuration, one line of JSON for each file: the file, the directory in which it was
trained, the files of the modules, and the SHA-256 of all of them. Files that have changed since, or are elsewhere, are
not trusted. The directory of the training is trusted: other files that the modules import from it are not checked.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_PACKAGE = __name__.partition(".")[0]
# The exceptions of a search for a module or file that may not exist.
_NOT_FOUND = (OSError, ImportError, ValueError, KeyError, AttributeError, RuntimeError)


def remember_code(files: Iterable[Path], names: Iterable[str]) -> None:
    """Record that `files` name code, `names` as `package.module:name`, with which the user trains in this directory.

    Does nothing if a module has no file, or if the configuration cannot be written.
    """
    with contextlib.suppress(*_NOT_FOUND):
        named = {name.partition(":")[0].strip() for name in names}
        # This package's own modules need no record.
        modules = {one: _sums_of(one) for one in sorted(named) if not one.startswith(f"{_PACKAGE}.")}
        shared = {"directory": os.getcwd(), "modules": modules}
        lines = [json.dumps({"file": str(one.resolve()), "sha256": _sha256(one)} | shared) for one in files]
        newest = {_head(line): line for line in _lines()}
        if named and (new := [line for line in lines if newest.get(_head(line)) != line]):
            _path().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(_path(), "a", encoding="utf-8", opener=partial(os.open, mode=0o600)) as kept:
                kept.write("\n" + "".join(f"{line}\n" for line in new))  # the last line may be incomplete


def distrust_reason(file: Path) -> str | None:
    """Return the reason why the code that `file` names is not trusted, "" if there is no record; None if it is trusted.

    Imports nothing.
    """
    with contextlib.suppress(*_NOT_FOUND):
        known = _note_of(str(file.resolve()))
        if known is None:
            return ""
        if known["directory"] != os.getcwd():
            return f"you have trained it in {known['directory']}"
        sources = [Path(one) for sums in known["modules"].values() for one in sums]
        if not all(map(_is_own, (Path.cwd(), file.parent, file, *sources))):
            return "its files or their folders belong to others, or others can write to them"
        if known["sha256"] != _sha256(file):
            return f"you have trained it, and {file.name} has changed since"
        for module, sums in known["modules"].items():
            if _sums_of(module) != sums:
                return f"you have trained it, and {module} has changed since"
        return None
    return ""


def _note_of(file: str) -> Mapping[str, Any] | None:
    """Return the last record of a file; None if there is none."""
    head = json.dumps({"file": file})[:-1]
    for line in reversed(_lines()):
        if _head(line) == head:
            with contextlib.suppress(ValueError):
                known: Mapping[str, Any] = json.loads(line)
                return known
    return None


def _head(line: str) -> str:
    """Return the part of a line that contains the file's name."""
    return line.partition(', "sha256": "')[0]


def _path() -> Path:
    """Return the path of the record. Raises RuntimeError if the user has no absolute home folder."""
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    folder = (base if base.is_absolute() else Path.home() / ".config") / "mpitrain"
    if not folder.is_absolute():
        raise RuntimeError(f"{folder} is in the current directory")
    return folder / "known_code.jsonl"


def _lines() -> list[str]:
    """Return the lines of the record; none if users other than this one could have written them. Raises OSError."""
    return _path().read_text("utf-8", "replace").splitlines() if _path().is_file() and _is_own(_path()) else []


def _is_own(path: Path) -> bool:
    """Return whether a file or folder belongs to this user or root, and is not world-writable. Raises OSError."""
    status = path.stat()
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & stat.S_IWOTH


def _sums_of(module: str) -> dict[str, str]:
    """Return the SHA-256, by path, of the files that importing a module runs, including those of its packages.

    Imports nothing. The current directory is searched first. Raises one of `_NOT_FOUND` if the module is not found.
    """
    first, *others = module.split(".")
    path = list(sys.path)
    try:
        if os.getcwd() not in path and "" not in path:
            sys.path.insert(0, os.getcwd())
        name, spec, found = first, find_spec(first), dict[str, str]()
    finally:
        sys.path[:] = path
    for part in (None, *others):
        if part is not None and spec is not None:
            name = f"{name}.{part}"
            places = spec.submodule_search_locations
            spec = None if places is None else PathFinder.find_spec(name, places)
        if spec is None or spec.origin is None or not spec.has_location:
            raise ImportError(name)
        found[spec.origin] = _sha256(Path(spec.origin))
    return found


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
