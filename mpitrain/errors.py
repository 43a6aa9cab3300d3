"""What can go wrong, and the exit code that says which kind it was.

MpitrainError             1  our bug, unless a subclass says otherwise
├── UserError             2  the user's input is wrong
│   ├── ConfigError          a key, a value or a file of settings
│   ├── DataError            a data file, or what is in it
│   ├── OutputError          the run folder
│   ├── CheckpointError      a damaged or unfitting checkpoint
│   └── MissingDependencyError  an optional package; the message holds the pip command
├── LaunchError           3  the launch is wrong: ranks, MPI, backend
├── TrainingError         4  training failed: NaN, divergence, ranks that have drifted apart
└── StoppedError          5  stopped on request, with a checkpoint written
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def one_line(text: str) -> str:
    """Return the text with every character that is not printable written as an escape: a terminal must not obey it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def reason_of(error: BaseException) -> str:
    """Return what a library's error says, on one line; its kind where it says nothing."""
    text = str(getattr(error, "strerror", None) or error).strip()
    return one_line(text.splitlines()[0] if text else type(error).__name__)


class MpitrainError(Exception):
    """Base of all errors that are shown to a user as one line.

    What a message quotes may come from a file that somebody else made: control characters become escapes.
    """

    exit_code = 1

    def __init__(self, message: object = "") -> None:
        super().__init__("\n".join(map(one_line, str(message).split("\n"))))


class UserError(MpitrainError):
    """The user's input is wrong; the message says what to change."""

    exit_code = 2


class ConfigError(UserError):
    """A key, a value or a file of settings."""


class DataError(UserError):
    """A data file, or what is in it."""


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
