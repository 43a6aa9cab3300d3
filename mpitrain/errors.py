"""Exceptions of the package, and the exit code of each.

MpitrainError             1  a bug in mpitrain; subclasses have their own code
├── UserError             2  the user's input is wrong
│   ├── ConfigError          a key, a value or a file of settings is wrong
│   ├── DataError            a data file or its content is wrong
│   │   └── MissingVariableError  the data lack a name in the settings; also a ConfigError
│   ├── OutputError          a run folder or an output file cannot be used
│   ├── CheckpointError      a checkpoint is damaged or does not fit the run
│   └── MissingDependencyError  an optional package is missing; the message contains the pip command
├── LaunchError           3  the launch is wrong: ranks, MPI, backend
├── TrainingError         4  training failed: NaN, divergence, different weights on the ranks
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
"""Environment variable with the path of a file to which a command writes the error that ends it, for its caller."""


def one_line(text: str) -> str:
    """Return the text with all unprintable characters as escapes, so that a terminal does not interpret them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shown_on(stream: TextIO, text: str) -> str:
    """Return the text with characters that the stream's encoding (for example ASCII) lacks written as escapes."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def reason_of(error: BaseException) -> str:
    """Return the message of a library's exception on one line, or its class name if it has no message."""
    text = str(getattr(error, "strerror", None) or error).strip()
    return one_line(text.splitlines()[0] if text else type(error).__name__)


class MpitrainError(Exception):
    """Base of all errors shown to a user: a message of one line, and below it the lines of an optional table.

    A message may quote names or content of files from other sources: newlines and control characters become escapes.

    Parameters
    ----------
    message : object
        The message, converted to text.
    *table : str
        The lines below the message.

    Attributes
    ----------
    args : tuple of str
        The message and the lines, with escapes; an error constructed from them, for example by pickle, has equal
        `args`.
    """

    exit_code = 1
    """Exit code of a command that ends with this error."""

    def __init__(self, message: object = "", *table: str) -> None:
        super().__init__(*(one_line(str(line)) for line in (message, *table)))

    def __str__(self) -> str:
        return "\n".join(self.args)


def exit_code_of(error: BaseException) -> int:
    """Return the exit code for an error that ends a command; 130 for an interrupt, by the shells' convention."""
    if isinstance(error, KeyboardInterrupt):
        return 130  # 128 + signal number
    return error.exit_code if isinstance(error, MpitrainError) else MpitrainError.exit_code


class UserError(MpitrainError):
    """The user's input is wrong; the message names what to change.

    Base class of ConfigError, DataError, OutputError, CheckpointError and MissingDependencyError. Exit code 2.
    """

    exit_code = 2


class ConfigError(UserError):
    """A key, a value or a file of settings is wrong, or the data lack a name in the settings."""


class DataError(UserError):
    """A data file or its content is wrong."""


class MissingVariableError(ConfigError, DataError):
    """The data lack a name in the settings: either the settings or the data may have to change.

    Both a ConfigError and a DataError.
    """


class OutputError(UserError):
    """A run folder or an output file cannot be used."""


class CheckpointError(UserError):
    """A checkpoint is damaged, or does not fit this run."""


class MissingDependencyError(UserError):
    """An optional package is not installed; the message contains the pip command."""


class LaunchError(MpitrainError):
    """The launch is wrong: the ranks, MPI or the backend. Exit code 3."""

    exit_code = 3


class TrainingError(MpitrainError):
    """Training failed: a loss is not finite, the training diverged, or the weights differ between ranks.

    Exit code 4.
    """

    exit_code = 4


class StoppedError(MpitrainError):
    """Training was stopped on request, after a checkpoint was written. Exit code 5."""

    exit_code = 5


@contextmanager
def writing(target: object, advice: str, refusals: tuple[type[Exception], ...] = (OSError,)) -> Iterator[None]:
    """Raise OutputError with `advice` if the block, which writes `target`, raises one of `refusals`.

    `refusals` are the exceptions of a failed write; some libraries raise other types than OSError.
    """
    try:
        yield
    except refusals as error:
        raise OutputError(f"{target}: cannot be written ({reason_of(error)}); {advice}") from error


_KEPT: ContextVar[list[MpitrainError] | None] = ContextVar("kept_errors", default=None)


@contextmanager
def keeping_errors() -> Iterator[list[MpitrainError]]:
    """Collect the errors that end commands inside the block; they are not printed because the caller raises them."""
    kept: list[MpitrainError] = []
    token = _KEPT.set(kept)
    try:
        yield kept
    finally:
        _KEPT.reset(token)


def read_error(path: Path) -> MpitrainError | None:
    """Return the error that `pass_to_caller` has written to a file, or None if there is no file."""
    if not path.is_file():
        return None
    left = json.loads(path.read_text(encoding="utf-8"))
    kind = globals().get(left["kind"], MpitrainError)
    error: MpitrainError = kind(*left["message"].split("\n"))
    return error


def pass_to_caller(error: MpitrainError, environ: Mapping[str, str] = os.environ) -> bool:
    """Pass an error that ends a command to the Python caller; return True if it need not be printed.

    For a caller in another process the first error is written to the file named by ERROR_FILE, and still printed.
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
    """Return the version of an installed package without importing it, or "" if it is not installed."""
    # Read from the names of the .dist-info folders, which a standard defines. importlib.metadata opens and parses a
    # file of each package: on every rank a dozen more opened files and 600 more file-system calls.
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
