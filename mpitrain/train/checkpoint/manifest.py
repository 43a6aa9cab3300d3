"""Validation of the content of a checkpoint's manifest, which hashes alone do not ensure."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from mpitrain.config import FIRST_RULES, NEWEST_RULES
from mpitrain.errors import CheckpointError
from mpitrain.json_text import parse_json
from mpitrain.train.state import TrainingState

_Count = Annotated[int, Field(ge=0, le=2**63 - 1)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", defer_build=True)


class _Tensor(_Part):
    sha256: str


class _Settings(_Part):
    """The settings that are read from a manifest, each optional; `check_whole` raises if a required one is missing."""

    semantics: str = ""
    global_batch_size: _Count | Literal["full"] = Field(0, alias="training.global_batch_size")
    virtual_ranks: int = Field(0, alias="training.virtual_ranks", ge=0, le=1 << 24)
    streams: int | None = Field(None, alias="data.streams", ge=1)
    rules: int = Field(FIRST_RULES, alias="data.rules", ge=FIRST_RULES, le=NEWEST_RULES)
    exact_batches: bool = Field(False, alias="training.exact_batches")
    engine: str = Field("", alias="training.engine")
    inputs: list[str] = Field([], alias="variables.input_variables")
    targets: list[str] = Field([], alias="variables.output_variables")
    may_change: dict[str, Any] = Field({}, alias="may change")

    @model_validator(mode="after")
    def _has_virtual_ranks(self) -> Self:
        # 0 means `reference`, which has no virtual ranks.
        if "virtual_ranks" in self.model_fields_set and (self.virtual_ranks == 0) != (self.semantics == "reference"):
            raise ValueError("training.virtual_ranks does not fit the semantics")
        if self.streams is not None and self.virtual_ranks % self.streams != 0:
            raise ValueError("data.streams does not divide training.virtual_ranks")
        return self


class _Manifest(_Part):
    format_version: int
    state: dict[str, Any]
    settings: dict[str, Any]
    tensors: dict[str, _Tensor]
    file_sha256: str


_NEEDED = ("semantics", "training.global_batch_size", "training.virtual_ranks", "training.engine",
           "variables.input_variables", "variables.output_variables")  # fmt: skip


def parse_manifest(path: Path, text: bytes) -> dict[str, Any]:
    """Return the manifest of the checkpoint at `path`. Raises CheckpointError if its values have wrong types."""
    try:
        manifest: dict[str, Any] = parse_json(text)
        _Manifest.model_validate(manifest)
        _Settings.model_validate(manifest["settings"])
        _state_adapter().validate_json(json.dumps(manifest["state"]), strict=True)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: its manifest is not valid; use another checkpoint") from error
    return manifest


@functools.cache
def _state_adapter() -> TypeAdapter[TrainingState]:
    return TypeAdapter(TrainingState)  # built only when a checkpoint is read


def check_whole(path: Path, state: dict[str, Any], settings: dict[str, Any]) -> None:
    """Raise CheckpointError if the manifest at `path` lacks an entry that a resumed run needs."""
    missing = [name for name in ("global_step",) if name not in state] + [one for one in _NEEDED if one not in settings]
    if missing:
        raise CheckpointError(f"{path}: its manifest lacks '{missing[0]}'; use another checkpoint")
