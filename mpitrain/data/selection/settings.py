"""What a source is asked for: the files, and which variables, times and points of them are samples."""

from __future__ import annotations

import glob
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mpitrain.config import (
    FIRST_RULES,
    DataSection,
    DomainSection,
    LoadedConfig,
    RunConfig,
    TargetTransform,
    VariablesSection,
)
from mpitrain.data.describe.copies import find_same_file
from mpitrain.data.describe.description import FileDescription
from mpitrain.data.describe.names import CICE_INPUTS, CICE_TARGET
from mpitrain.data.files.netcdf_classic import read_global_texts
from mpitrain.data.files.variable import FieldFile
from mpitrain.data.formats.open import is_data
from mpitrain.data.formats.reading import AS_IT_IS, Reading
from mpitrain.durable_files import HANDED_OVER, is_in_passing_folder
from mpitrain.errors import DataError

# In the original program, and so in runs of before, such numbers stand for no value: CICE writes 1e30 on land.
_LARGEST = 1e29
_PATTERN = re.compile(r"[*?\[]")
WITHOUT_TARGETS = "predicted from the inputs alone, without errors and statistics"


@dataclass(frozen=True)
class Selection:
    """The settings that decide what a source reads; `config.data`, `variables` and `domain` say what each means.

    `files` are paths and patterns. Without names, inputs and targets are those of a CICE history file, or the columns
    of a table. `is_area_weighted`: statistics count areas, those of the variable `area_name` or by latitude; with
    `weighs_loss` losses do too. `max_patterns` None: no limit. `units` are those that values are wanted in, by the name
    of a variable or a level of it; others are read in the units of the first file. `held_out_files` are read after the
    others, for validation alone. `target_transforms` are what is learnt in place of targets, by name; samples then hold
    that. `coordinates` are the variables that the user names for "lat", "lon" and "time", `dimensions` those that are
    one under two names. `reading` says how values are read; `rules` and `lag_step_days` are `data`'s own.
    `longitude_ranges` are the values, by an input's name, from which to which a network has learnt it: one that is a
    longitude is turned to them. `is_resumed`: a network has its inputs already, so that none are proposed.
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
    rules: int | None = None
    lag_step_days: float | None = None
    target_transforms: Mapping[str, TargetTransform] = field(default_factory=dict)
    coordinates: Mapping[str, str] = field(default_factory=dict)
    dimensions: Mapping[str, str] = field(default_factory=dict)
    reading: Reading = AS_IT_IS
    longitude_ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    is_resumed: bool = False

    @property
    def counts_times(self) -> bool:
        """Whether times are values and dimensions have names: in runs of before both were positions."""
        return self.rules != FIRST_RULES

    def describe(self, file: FieldFile) -> FileDescription:
        """Return what an open file means, with the names of `data`."""
        return FileDescription(file, self.coordinates, self.dimensions, self.kind == "fields")


def asked_names(variables: VariablesSection) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of inputs and targets that the settings ask for; the default is those of a CICE history."""
    return tuple(variables.input_variables or CICE_INPUTS), tuple(variables.output_variables or (CICE_TARGET,))


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
        rules=data.rules,
        lag_step_days=data.lag_step_days,
        held_out_files=() if without_held_out else tuple(data.validation_entries),
        target_transforms=config.network.transforms if to_learn else {},
        coordinates=data.named_coordinates,
        dimensions=data.dimensions or {},
        reading=_reading_of(data, config.semantics == "reference"),
    )


def _reading_of(data: DataSection, is_reference: bool) -> Reading:
    has_limit = is_reference or data.rules == FIRST_RULES
    return Reading(
        reader=None if data.reader is None else data.reader.model_dump(mode="json"),
        missing_values=tuple(data.missing_values or ()),
        time_format=data.time_format,
        time_name=data.named_coordinates.get("time"),
        largest=_LARGEST if has_limit else math.inf,
    )


def selection_to_predict(config: RunConfig, files: Sequence[str] | None = None) -> Selection:
    """Return what `config` selects of `files`, unthinned: predictions are for all samples, whatever they count."""
    selection = selection_of(config, files, without_held_out=True)
    return replace(selection, max_patterns=None, thin_fraction=1.0, is_area_weighted=False, weighs_loss=False)


def with_names_of_file(loaded: LoadedConfig) -> LoadedConfig:
    """Return the settings with the inputs and targets that the first data file names, if the settings name none.

    Files that were collected in a running model do so by the global attributes `input_variables` and
    `output_variables`; a notice tells of their `weight_variable`. A file that cannot be read is left to its reader.
    """
    config, variables = loaded.config, loaded.config.variables
    if not config.data.entries or variables.input_variables is not None or variables.output_variables is not None:
        return loaded
    try:
        path = expand_paths(config.data.entries)[0]
        texts = read_global_texts(path)
    except (OSError, EOFError, DataError):
        return loaded
    inputs, targets = (texts.get(name, "").split() for name in ("input_variables", "output_variables"))
    if not inputs or not targets:
        return loaded
    named = type(variables)(input_variables=inputs, output_variables=targets)
    with_names = type(config).model_validate({**dict(config), "variables": named})
    weight = texts.get("weight_variable")
    if weight is None or config.data.area_variable is not None:
        return replace(loaded, config=with_names)
    advice = f"data.area_variable={weight} training.area_weighted_loss=true count them"
    notice = f"{path}: samples of strata, trained on without their weights; {advice}"
    return replace(loaded, config=with_names, notices=(*loaded.notices, notice))


def expand_paths(entries: Sequence[str]) -> tuple[Path, ...]:
    """Return the files of paths and of patterns such as "year_*.nc", each file once.

    The matches of a pattern are in natural order (year_2 before year_10); the entries of a list keep theirs. Raises
    DataError for a path that is not there and for a pattern that matches nothing.
    """
    if not entries:
        raise DataError("data.data_path is not set; name a file, a pattern such as 'year_*.nc', or a list of these")
    return tuple(dict.fromkeys(path for entry in entries for path in _matches(entry)))


def refuse_same_file(
    selection: Selection, paths: Sequence[Path], others: Sequence[Path], key: str, used_as: str = "data.data_path"
) -> None:
    """Raise DataError where one of `others`, which the setting `key` names, is one of `paths`, a link to it or a copy.

    `used_as` are the settings of `paths`. Runs of before took links and copies for other files.
    """
    if not selection.counts_times:
        known = set(paths)
        both = [(one, one) for one in others if one in known]
    else:
        try:
            both = [found] if (found := find_same_file(paths, others)) is not None else []
        except OSError as error:
            raise DataError(f"{error.filename or others[0]}: cannot be read ({error.strerror})") from error
    for other, path in both[:1]:
        name = "" if other == path else f" as {path}"
        raise DataError(
            f"{other}: is in {key} and in {used_as}{name}; take it out of one of them: skill on samples that are "
            "trained on or chosen by tells nothing of others"
        )


def name_files(files: Sequence[str]) -> str:
    """Return the files for a message; data in memory of a Python program have no name."""
    return " ".join(files) if not any(is_in_passing_folder(Path(file)) for file in files) else "data in memory"


def name_in_lines(lines: Sequence[str], files: Sequence[Path]) -> tuple[str, ...]:
    """Return lines in which data in memory of a Python program are called so, and not by the file that passes them."""
    passing = [str(file) for file in files if is_in_passing_folder(file)]
    for name in passing:
        lines = [line.replace(name, "data") for line in lines]
    return tuple(lines)


def in_files(lines: Mapping[str, Path]) -> list[str]:
    """Return lines with the file that each is said of."""
    return [f"{path}: {line}" for line, path in lines.items()]


def natural_key(path: Path) -> tuple[tuple[int, int, str], ...]:
    """Return what sorts names as people do: digits by their value."""
    words = re.split(r"(\d+)", str(path))
    return tuple((0, int(word), "") if word.isdecimal() else (1, 0, word) for word in words if word)


def _matches(entry: str) -> list[Path]:
    path = Path(entry).expanduser()
    if is_data(path):  # also where its name holds a character of patterns
        return [path]
    if not _PATTERN.search(entry):
        problem = "a folder; add a pattern such as '*.nc'" if path.is_dir() else "no such file"
        if is_in_passing_folder(Path(entry)):
            raise DataError(f"{entry}: {HANDED_OVER}")
        raise DataError(f"{entry}: {problem}; set data.data_path to an existing file, a pattern or a list of these")
    found = sorted((Path(name) for name in glob.glob(str(path), recursive=True)), key=natural_key)
    files = [file for file in found if is_data(file)]
    if not files:
        raise DataError(f"{entry}: no file matches this pattern; set data.data_path to one that does")
    return files
