"""One log file a rank: `logs/rank-NNNN.log`.

A logger is a value that is passed on: none is registered under a global name and the root logger stays as it is.
A program that uses this package keeps its own logging.
"""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from io import TextIOWrapper
from pathlib import Path


def open_rank_log(folder: Path, rank: int, host: str, level: int = logging.INFO) -> logging.Logger:
    """Logger of one rank, writing to `folder/logs/rank-NNNN.log`; close it with `close_rank_log`.

    The file appears with the first record: ten thousand quiet ranks create nothing. A disk that refuses a record
    loses it and does not end the run.
    """
    logger = logging.Logger(f"mpitrain.rank-{rank:04d}", level)
    handler = _RankFileHandler(folder / "logs" / f"rank-{rank:04d}.log")
    handler.setFormatter(_RankFormatter(f"{rank}@{host}"))
    logger.addHandler(handler)
    return logger


def close_rank_log(logger: logging.Logger) -> None:
    """Flush and close the file of a logger from `open_rank_log`; a second call does nothing."""
    for handler in list(logger.handlers):
        handler.close()
        logger.removeHandler(handler)


class _RankFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123+00:00 INFO 3@node7 message`: UTC, so that the ranks' files can be merged by sorting."""

    def __init__(self, origin: str) -> None:
        super().__init__(f"%(asctime)s %(levelname)s {origin.replace('%', '%%')} %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802  logging's name
        return datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")


class _RankFileHandler(logging.FileHandler):
    def __init__(self, path: Path) -> None:
        super().__init__(path, mode="a", encoding="utf-8", delay=True)

    def _open(self) -> TextIOWrapper:
        Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
        return super()._open()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # opening is outside of logging's own net
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's name
        """Lose the record: a full disk must neither end the run nor fill stderr with traces."""
