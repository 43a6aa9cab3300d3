"""`metrics.jsonl`: one JSON object per line, one line per epoch or logged step.

Floats are written by `repr`, the shortest text that reads back to the same bits, so the metrics of two runs can be
compared bit by bit.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, NoReturn

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from mpitrain.durable_files import write_durably
from mpitrain.errors import OutputError, TrainingError, reason_of, writing
from mpitrain.json_text import parse_json, read_regular_file

Metric = float | int | str | list[float] | dict[str, Any] | None
_LARGEST = 2**63 - 1
_COLUMNS = ("computing", "reading", "communicating", "waiting", "memory_mib")

_Number = Annotated[float, Field(allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0, le=_LARGEST)]
_OfRanks = list[_Number] | dict[str, _Number]


class MetricsFile(AbstractContextManager["MetricsFile"]):
    """Writer that appends records to one file. For one rank only.

    A context manager that closes the file. Opening drops an incomplete last line, left by a killed run.

    Parameters
    ----------
    path : pathlib.Path
        The file; created if it does not exist.

    Raises
    ------
    OutputError
        The file cannot be opened, or is a symbolic link.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = _open_to_append(path)

    def append(self, record: Mapping[str, Metric]) -> None:
        """Write one record; other processes can read all of it when this returns.

        Parameters
        ----------
        record : mapping
            Values by name. Floats must be finite: JSON represents neither NaN nor infinity.

        Raises
        ------
        TrainingError
            A number is NaN or infinite.
        OutputError
            Writing fails.
        """
        _refuse_non_finite(record, self.path)
        content = (json.dumps(dict(record), allow_nan=False) + "\n").encode()
        with writing(self.path, "free space, then --resume"):
            while content:
                content = content[os.write(self._descriptor, content) :]

    def cut_back(self, last_step: int) -> None:
        """Remove the records after step `last_step`, in one atomic rewrite; records without "step" stay.

        A resumed run repeats the steps after its checkpoint, so their earlier records must be removed.

        Parameters
        ----------
        last_step : int
            Number of optimiser steps at the checkpoint.

        Raises
        ------
        OutputError
            A line is not a record, or writing fails.
        """
        kept = [line for line, record in _parse(self.path) if _step_of(record) <= last_step]
        self.close()
        try:
            with writing(self.path, "free space, then --resume"):
                write_durably(self.path, b"".join(line + b"\n" for line in kept))
        finally:
            self._descriptor = _open_to_append(self.path)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __exit__(self, *_: object) -> None:
        self.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return all complete records of the file, in order; an incomplete last line is left out.

    Parameters
    ----------
    path : pathlib.Path
        `metrics.jsonl` of a run.

    Returns
    -------
    list of dict
        Values by name; floats have the bits that were written.

    Raises
    ------
    OutputError
        The file is missing or a line is not a record; the message names the line.
    """
    return [record for _, record in _parse(path)]


def _open_to_append(path: Path) -> int:
    try:
        # O_APPEND: a record is always added at the end of the file
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        raise OutputError(f"{path}: cannot be opened: {error.strerror}; is output.model_dir writable?") from error
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        os.ftruncate(descriptor, content.rfind(b"\n") + 1)
    return descriptor


def _refuse_non_finite(record: Mapping[str, Metric], path: Path) -> None:
    for key, value in record.items():
        if any(not math.isfinite(number) for number in _floats_in(value)):
            place = f" at step {record['step']}" if "step" in record else ""
            raise TrainingError(f"{path}: {key}={value}{place} is not finite; lower training.optimizer.learning_rate")


def _floats_in(value: Any) -> Iterator[float]:
    if isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _floats_in(part)
    elif isinstance(value, float):
        yield value


def _step_of(record: Mapping[str, Any]) -> float:
    step = record.get("step")
    return step if isinstance(step, int | float) else -math.inf


def _parse(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    try:
        content = read_regular_file(path)
    except (OSError, ValueError) as error:
        raise OutputError(f"{path}: cannot be read: {reason_of(error)}; is this a run folder?") from error
    whole = content[: content.rfind(b"\n") + 1]  # a line without a newline is incomplete: the run was killed
    for number, line in enumerate(whole.splitlines(), start=1):
        yield line, _parse_line(line, path, number)


def _parse_line(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        record = parse_json(line, parse_constant=_refuse_constant)
    except ValueError as error:
        raise OutputError(f"{path}:{number}: not a JSON record; delete this line") from error
    if not isinstance(record, dict):
        raise OutputError(f"{path}:{number}: {type(record).__name__} instead of a JSON object; delete this line")
    wrong = wrong_key(record)
    if wrong is not None:
        raise OutputError(f"{path}:{number}: {wrong}: not a value that a run writes; delete this line")
    return record


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", defer_build=True)


class _Slowest(_Part):
    rank: _Count
    host: str
    cause: str
    behind_s: _Number
    share: _Number


class _Gpu(_Part):
    most_memory_mib: _Number
    total_memory_mib: _Number
    use_percent: _Number = 0.0


class _Timing(_Part):
    step_s: _Number
    samples_per_s: _Number
    ranks: dict[str, _OfRanks]
    gpus: list[_Gpu | None] = []
    slowest: _Slowest | None = None
    slowest_node: int | str | None = None

    @model_validator(mode="after")
    def _has_each_rank_in_each_column(self) -> _Timing:
        names = [_names(self.ranks.get(column)) for column in _COLUMNS]
        if any(found is None or found != names[0] for found in names):
            raise ValueError("ranks")
        return self


class _Record(_Part):
    epoch: _Count | None = None
    step: _Count | None = None
    train_loss: _Number | None = None
    validation_loss: _Number | None = None
    learning_rate: _Number | None = None
    wall_time_s: _Number | None = None
    jacobian_change: _Number | None = None
    test_loss: _Number | None = None
    timing: _Timing | None = None


_RECORD: TypeAdapter[_Record] = TypeAdapter(_Record)


def wrong_key(record: Mapping[str, Any]) -> str | None:
    """Return the key of the first value of a type that `metrics.jsonl` does not have there; None if all are valid."""
    try:
        _RECORD.validate_python(record)
    except ValidationError as error:
        return ".".join(map(str, error.errors(include_url=False, include_input=False)[0]["loc"]))[:60]
    return None


def _names(values: list[float] | dict[str, float] | None) -> Any:
    return None if values is None else len(values) if isinstance(values, list) else list(values)
