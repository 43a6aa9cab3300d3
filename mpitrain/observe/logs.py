"""One log file per rank: `logs/rank-NNNN.log`.

Loggers are passed as arguments: none is registered under a global name, and the root logger is not changed, so the
logging of a program that uses this package is not affected.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import TextIO

from mpitrain.errors import one_line

_MOST_HELD = 10_000


def start_rank_log(rank: int, level: int) -> logging.Logger:
    """Return a rank's logger that keeps its records in memory until `log_into`; without that call they are lost."""
    logger = logging.Logger(f"mpitrain.rank-{rank:04d}", level)
    logger.addHandler(MemoryHandler(_MOST_HELD, flushLevel=logging.CRITICAL + 1, flushOnClose=False))
    return logger


def log_into(logger: logging.Logger, folder: Path, rank: int, host: str) -> None:
    """Write the records kept by the logger, and all later ones, to `folder/logs/rank-NNNN.log`.

    The file is created with the first record, so ranks without records create no files. A record that cannot be
    written is lost and does not end the run.
    """
    handler = _RankFileHandler(folder / "logs" / f"rank-{rank:04d}.log")
    handler.setFormatter(_RankFormatter(f"{rank}@{host}"))
    for held in list(logger.handlers):
        if isinstance(held, MemoryHandler):
            held.setTarget(handler)
            held.flush()
            held.close()
            logger.removeHandler(held)
    logger.addHandler(handler)


def open_rank_log(folder: Path, rank: int, host: str) -> logging.Logger:
    """Return a rank's logger that writes to `folder/logs/rank-NNNN.log`; close it with `close_rank_log`."""
    logger = start_rank_log(rank, logging.INFO)
    log_into(logger, folder, rank, host)
    return logger


def close_rank_log(logger: logging.Logger) -> None:
    """Flush and close the file of a logger; a second call does nothing."""
    for handler in list(logger.handlers):
        handler.close()
        logger.removeHandler(handler)


@contextmanager
def closing_log(logger: logging.Logger) -> Iterator[None]:
    """Close the logger's file after the block."""
    try:
        yield
    finally:
        close_rank_log(logger)


@contextmanager
def warnings_into(logger: logging.Logger) -> Iterator[list[str]]:
    """Log the warnings of Python's libraries instead of printing them while the block runs; yield their texts.

    Users can do nothing about a deprecated call inside a library. Warnings that are turned into errors
    (`python -W error`) stay errors.
    """
    texts: list[str] = []

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
        line: str | None = None,
    ) -> None:  # fmt: skip
        texts.append(f"{category.__name__}: {message}")
        logger.warning("%s:%d: %s", filename, lineno, " ".join(texts[-1].split()))

    before = warnings.showwarning
    warnings.showwarning = show
    try:
        yield texts
    finally:
        warnings.showwarning = before


class _RankFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123+00:00 INFO 3@node7 message`: UTC, so that the ranks' files can be merged by sorting."""

    def __init__(self, origin: str) -> None:
        super().__init__(f"%(asctime)s %(levelname)s {origin.replace('%', '%%')} %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802  logging's name
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        record.message = one_line(record.message)
        return super().formatMessage(record)


class _RankFileHandler(logging.FileHandler):
    def __init__(self, path: Path) -> None:
        super().__init__(path, mode="a", encoding="utf-8", delay=True)

    def _open(self) -> TextIOWrapper:
        Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
        return super()._open()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # raised by opening, which logging does not catch
            self.handleError(record)

    def close(self) -> None:
        """Close the file; records that cannot be written, as on a full disk, are lost."""
        with contextlib.suppress(OSError):
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's name
        """Drop the record: a full disk must neither end the run nor fill stderr with tracebacks."""
