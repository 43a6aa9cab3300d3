"""What can go wrong, and the exit code that says which kind it was.

MpitrainError             1  our bug, unless a subclass says otherwise
├── UserError             2  the user's input is wrong
│   ├── ConfigError          a key, a value or a file of settings
│   ├── DataError            a data file, or what is in it
│   │   └── MissingVariableError  a name in the settings that the data lacks; a ConfigError too
│   ├── OutputError          the run folder
│   ├── CheckpointError      a damaged or unfitting checkpoint
│   └── MissingDependencyError  an optional package; the message holds the pip command
├── LaunchError           3  the launch is wrong: ranks, MPI, backend
├── TrainingError         4  training failed: NaN, divergence, ranks that have drifted apart
└── StoppedError          5  stopped on request, with a checkpoint written
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TextIO

ERROR_FILE = "MPITRAIN_ERROR_FILE"
"""Variable that names a file, which is to receive the error that ends a command: for a caller in another process."""


def one_line(text: str) -> str:
    """Return the text with every character that is not printable written as an escape: a terminal must not obey it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shown_on(stream: TextIO, text: str) -> str:
    """Return the text with the letters that the stream's encoding lacks, such as ASCII, written as escapes."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def reason_of(error: BaseException) -> str:
    """Return what a library's error says, on one line; its kind where it says nothing."""
    text = str(getattr(error, "strerror", None) or error).strip()
    return one_line(text.splitlines()[0] if text else type(error).__name__)


class MpitrainError(Exception):
    """Base of all errors that are shown to a user: one line, and below it those of a table, where there is one.

    What a message quotes may come from a file that somebody else made, or be its name: newlines and control characters
    become escapes. `args` are the lines: what is made again from them, by pickle or by hand, is the same.
    """

    exit_code = 1

    def __init__(self, message: object = "", *table: str) -> None:
        super().__init__(*(one_line(str(line)) for line in (message, *table)))

    def __str__(self) -> str:
        return "\n".join(self.args)


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of an error that ends a command; of an interrupt as shells count."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    return error.exit_code if isinstance(error, MpitrainError) else MpitrainError.exit_code


class UserError(MpitrainError):
    """The user's input is wrong; the message says what to change."""

    exit_code = 2


class ConfigError(UserError):
    """A key, a value or a file of settings."""


class DataError(UserError):
    """A data file, or what is in it."""


class MissingVariableError(ConfigError, DataError):
    """A name in the settings that the data lacks: either of them may be what to change."""


class OutputError(UserError):
    """The run folder cannot be used."""


class CheckpointError(UserError):
    """A checkpoint is damaged, or does not fit this run."""


class MissingDependencyError(UserError):
    """An optional package is not installed; the message holds the pip command."""


class LaunchError(MpitrainError):
    """Ranks, MPI or the backend: the launch itself is wrong."""

    exit_code = 3


class TrainingError(MpitrainError):
    """Training failed: a loss that is not finite, divergence, or ranks that no longer hold the same weights."""

    exit_code = 4


class StoppedError(MpitrainError):
    """Stopped on request; a checkpoint was written first."""

    exit_code = 5


@contextmanager
def writing(what: object, advice: str, refusals: tuple[type[Exception], ...] = (OSError,)) -> Iterator[None]:
    """Write `what` inside the block: raise OutputError, with what to do, where the disk refuses.

    `refusals` are the errors by which it does; libraries have others than OSError.
    """
    try:
        yield
    except refusals as error:
        raise OutputError(f"{what}: cannot be written ({reason_of(error)}); {advice}") from error


_KEPT: ContextVar[list[MpitrainError] | None] = ContextVar("kept_errors", default=None)


@contextmanager
def keeping_errors() -> Iterator[list[MpitrainError]]:
    """Collect the errors that end commands inside the block; they are not printed, since the caller raises them."""
    kept: list[MpitrainError] = []
    token = _KEPT.set(kept)
    try:
        yield kept
    finally:
        _KEPT.reset(token)


def read_error(path: Path) -> MpitrainError | None:
    """Return the error that `tell_caller` has left in a file; None where there is none."""
    if not path.is_file():
        return None
    left = json.loads(path.read_text(encoding="utf-8"))
    kind = globals().get(left["kind"], MpitrainError)
    error: MpitrainError = kind(*left["message"].split("\n"))
    return error


def tell_caller(error: MpitrainError, environ: Mapping[str, str] = os.environ) -> bool:
    """Give an error that ends a command to the caller in Python; return whether it need not be printed.

    A caller in another process finds the first error in the file that ERROR_FILE names, and sees the printed line too.
    """
    kept = _KEPT.get()
    if kept is not None:
        kept.append(error)
        return True
    path = environ.get(ERROR_FILE)
    if path:
        with suppress(OSError), open(path, "x", encoding="utf-8") as file:
            json.dump({"kind": type(error).__name__, "message": str(error)}, file)
    return False


@functools.cache
def installed_version(package: str) -> str:
    """Return the version of an installed package without loading it; "" where it is not installed."""
    # By the names of folders, which the standard of installed packages fixes. importlib.metadata opens a file of each
    # package and parses it as an e-mail: a dozen files and 600 questions to the file system more on every rank.
    name = package.lower().replace("-", "_")
    for folder in sys.path:
        with suppress(OSError):
            for entry in os.listdir(folder or "."):
                stem, _, kind = entry.rpartition(".")
                found, _, version = stem.partition("-")
                if kind == "dist-info" and found.lower() == name and version:
                    return version
    import importlib.metadata  # older layouts

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
