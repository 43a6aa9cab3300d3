"""What a source is asked for: the files, and which variables, times and points of them are samples."""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mpitrain.config import DomainSection, RunConfig
from mpitrain.config.model import TargetTransform, target_transforms
from mpitrain.data.files.zarr import is_zarr
from mpitrain.errors import DataError

_PATTERN = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Selection:
    """The settings that decide what a source reads; `config.data`, `variables` and `domain` say what each means.

    `files` are paths and patterns. Without names, inputs and targets are those of a CICE history file, or the columns
    of a table. `is_area_weighted`: statistics count areas, those of the variable `area_name` or by latitude; with
    `weighs_loss` losses do too. `max_patterns` None: no limit. `units` are those that values are wanted in, by the name
    of a variable or a level of it; others are read in the units of the first file. `held_out_files` are read after the
    others, for validation alone. `target_transforms` are what is learnt in place of targets, by name; samples then hold
    that.
    """

    files: tuple[str, ...]
    domain: DomainSection
    input_names: tuple[str, ...] | None = None
    target_names: tuple[str, ...] | None = None
    kind: str = "points"
    is_area_weighted: bool = False
    area_name: str | None = None
    weighs_loss: bool = False
    thin_fraction: float = 1.0
    max_patterns: int | None = None
    seed: int = 0
    dtype: str = "float32"
    units: Mapping[str, str] = field(default_factory=dict)
    held_out_files: tuple[str, ...] = ()
    target_transforms: Mapping[str, TargetTransform] = field(default_factory=dict)


def selection_of(
    config: RunConfig, files: Sequence[str] | None = None, without_held_out: bool = False, to_learn: bool = False
) -> Selection:
    """Return what `config` asks for, from `files` in place of its own `data.data_path`.

    `without_held_out` leaves the files of `data.validation_path` out. `to_learn`: targets as `model.output_transforms`
    has them learnt, not as the files hold them.
    """
    data, variables = config.data, config.variables
    return Selection(
        files=tuple(data.entries if files is None else files),
        domain=config.domain,
        input_names=tuple(variables.input_variables) if variables.input_variables else None,
        target_names=tuple(variables.output_variables) if variables.output_variables else None,
        kind=data.samples,
        is_area_weighted=data.area_weighted or config.training.area_weighted_loss,
        area_name=data.area_variable,
        weighs_loss=config.training.area_weighted_loss,
        thin_fraction=data.thin_fraction,
        max_patterns=config.most_samples,
        seed=config.split_seed,
        dtype=config.training.dtype,
        held_out_files=() if without_held_out else tuple(data.validation_entries),
        target_transforms=target_transforms(config.network) if to_learn else {},
    )


def expand_paths(entries: Sequence[str]) -> tuple[Path, ...]:
    """Return the files of paths and of patterns such as "year_*.nc", each file once.

    The matches of a pattern are in natural order (year_2 before year_10); the entries of a list keep theirs. Raises
    DataError for a path that is not there and for a pattern that matches nothing.
    """
    if not entries:
        raise DataError("data.data_path is not set; name a file, a pattern such as 'year_*.nc', or a list of these")
    files = dict.fromkeys(path for entry in entries for path in _matches(entry))
    return tuple(files)


def natural_key(path: Path) -> tuple[tuple[int, int, str], ...]:
    """Return what sorts names as people do: digits by their value."""
    words = re.split(r"(\d+)", str(path))
    return tuple((0, int(word), "") if word.isdigit() else (1, 0, word) for word in words if word)


def _matches(entry: str) -> list[Path]:
    path = Path(entry).expanduser()
    if path.is_file() or is_zarr(path):  # also where its name holds a character of patterns
        return [path]
    if not _PATTERN.search(entry):
        problem = "a folder; add a pattern such as '*.nc'" if path.is_dir() else "no such file"
        raise DataError(f"{entry}: {problem}; set data.data_path to an existing file, a pattern or a list of these")
    found = sorted((Path(name) for name in glob.glob(str(path), recursive=True)), key=natural_key)
    files = [file for file in found if file.is_file() or is_zarr(file)]
    if not files:
        raise DataError(f"{entry}: no file matches this pattern; set data.data_path to one that does")
    return files
