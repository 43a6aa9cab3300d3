"""The fields that a `run_record.json` must have to be used, and their types; further fields are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mpitrain.errors import UserError
from mpitrain.json_text import read_json

FORMAT = 1
_LARGEST = 2**63 - 1
_Number = Annotated[int, Field(ge=0, le=_LARGEST)]
_Count = Annotated[int, Field(ge=1, le=_LARGEST)]
_Text = Annotated[str, Field(min_length=1, max_length=1 << 16, pattern=r"^[^\x00]+$")]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", frozen=True, defer_build=True)


class _File(_Part):
    path: _Text
    bytes: _Number
    sha256: str | None


class _Ranks(_Part):
    number: _Count
    nodes: _Count


class _Machine(_Part):
    cpu: str = ""
    cpu_capability: str = ""
    system: str = ""
    mpi_library: str = ""
    compiler: str = ""
    settings: str = ""


class _Git(_Part):
    commit: str
    changed_files: list[str]


class _Skill(_Part):
    rmse: int | float | None = None
    units: str = ""


class _Result(_Part):
    weights_sha256: str
    skill: dict[str, _Skill] = {}
    test_skill: dict[str, _Skill] = {}
    epochs: int | None = None
    steps: _Number | None = None


class StoredRecord(_Part):
    """The fields of a record that the package uses; `result` is None until the run has ended."""

    settings: dict[str, Any]
    decided: dict[str, str | bool | int | float | list[Any] | dict[str, Any] | None]
    ranks: _Ranks
    data: list[_File]
    held_out_files: _Number = 0
    """The number of files of `data.validation_path`: the last ones in `data`, before the initial weights."""
    first_step: _Number = 0
    working_folder: _Text
    versions: dict[str, str]
    machines: list[_Machine]
    git: _Git | None = None
    started: str = ""
    ended: str = ""
    command_line: list[str] = []
    used: dict[str, int | float] = {}
    result: _Result | None = None
    run: str | None = None
    """The identity of the launch; None in records of earlier versions."""


def read_record(path: Path) -> dict[str, Any]:
    """Return a record as plain values. Raises UserError if it is missing or not valid."""
    config = path.with_name("config.yaml")
    if not path.is_file() and config.is_file():
        raise UserError(
            f"{path}: is missing, as in a run that was trained inside a model: its data and ranks are not known; "
            f"train it on the collected file: mpitrain train {config}"
        )
    try:
        record = read_json(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a record"
        raise UserError(f"{path}: cannot be read ({reason}); runs of earlier versions have no record") from error
    found = record.get("format") if isinstance(record, dict) else None
    if isinstance(found, int) and found != FORMAT:
        raise UserError(
            f"{path}: written in format {found}, this mpitrain reads {FORMAT}; use the version of mpitrain "
            "that wrote it"
        )
    try:
        return StoredRecord.model_validate(record).model_dump()
    except (ValidationError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read (it is not a record{_place(error)}); train the run again") from error


def _place(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return ""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f": {place[:60]}" if place else ""
