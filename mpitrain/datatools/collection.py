"""C and Fortran sources that collect training samples in a running model, written into a folder of the user."""

from __future__ import annotations

import re
from pathlib import Path

from mpitrain.durable_files import write_durably
from mpitrain.errors import UserError, writing

SOURCES = Path(__file__).with_name("collection_sources")
HEADER, IN_C, IN_FORTRAN = "mpitrain_collection.h", "mpitrain_collection.c", "mpitrain_collection_module.f90"
_OWN_PART = re.compile(r'^#include "(\w+\.h)"\n', re.MULTILINE)


def collection_files() -> dict[str, str]:
    """Return the texts of the files by name; in the C file all parts are inlined, except the public header."""
    texts = {name: (SOURCES / name).read_text(encoding="utf-8") for name in (HEADER, IN_C, IN_FORTRAN)}
    return {name: _OWN_PART.sub(_part, text) for name, text in texts.items()}


def write_collection(folder: Path) -> tuple[Path, ...]:
    """Write the files into `folder`, which is created if necessary, and return their paths.

    Raises UserError if the folder is a file, OutputError if a file cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file; give a folder for {HEADER}, {IN_C} and {IN_FORTRAN}")
    paths = []
    for name, text in collection_files().items():
        path = folder / name
        with writing(path, "check the folder, its permissions and space"):
            folder.mkdir(parents=True, exist_ok=True)
            write_durably(path, text.encode())
        paths.append(path)
    return tuple(paths)


def _part(include: re.Match[str]) -> str:
    name = include[1]
    return include[0] if name == HEADER else (SOURCES / name).read_text(encoding="utf-8") + "\n"
