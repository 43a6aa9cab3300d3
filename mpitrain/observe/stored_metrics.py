"""What a record of `metrics.jsonl` must hold to be used, whoever wrote it: known keys with values of their kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

_LARGEST = 2**63 - 1
_COLUMNS = ("computing", "reading", "communicating", "waiting", "memory_mib")

_Number = Annotated[float, Field(allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0, le=_LARGEST)]
_OfRanks = list[_Number] | dict[str, _Number]


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
    """Return the key of the first value that is of another kind than `metrics.jsonl` has there; None for a record."""
    try:
        _RECORD.validate_python(record)
    except ValidationError as error:
        return ".".join(map(str, error.errors(include_url=False, include_input=False)[0]["loc"]))[:60]
    return None


def _names(values: list[float] | dict[str, float] | None) -> Any:
    return None if values is None else len(values) if isinstance(values, list) else list(values)
