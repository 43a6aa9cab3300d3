"""The settings of a source: its files, and which of their variables, times and points are samples."""

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
from mpitrain.data.formats.reading import NO_SETTINGS, Reading
from mpitrain.durable_files import NOT_STORED, is_in_temporary_folder
from mpitrain.errors import DataError

# With semantics=reference and with data.rules=1, larger magnitudes are missing values, as in the C++ program: CICE
# writes 1e30 on land.
_LARGEST = 1e29
_PATTERN = re.compile(r"[*?\[]")
WITHOUT_TARGETS = "predicted from the inputs alone, without errors and statistics"


@dataclass(frozen=True)
class Selection:
    """The settings that decide what a source reads; they are described in `config.data`, `variables` and `domain`.

    Attributes
    ----------
    files : tuple of str
        Paths and patterns.
    domain : DomainSection
        The points that are samples.
    input_names, target_names : tuple of str or None
        None (default): those of a CICE history file, or the columns of a table of samples.
    kind : str
        "points" (default) or "fields".
    is_area_weighted : bool
        Whether statistics are weighted by area; default False.
    area_name : str or None
        Variable with the areas; None (default): the cosine of the latitude.
    weighs_loss : bool
        Whether the loss is weighted by area too; default False.
    thin_fraction : float
        Fraction of the selected samples that is kept at random, above 0; default 1.
    max_patterns : int or None
        Maximum number of samples; None (default): no limit.
    seed : int
        Seed of the thinning.
    dtype : str
        Type of the samples' inputs and targets, "float32" (default) or "float64".
    units : mapping of str to str
        Wanted units by the name of a variable or a level of it; others are read in the units of the first file.
    held_out_files : tuple of str
        Paths and patterns that are read after `files`, for validation only.
    rules : int or None
        `data.rules`; None (default): the newest.
    lag_step_days : float or None
        `data.lag_step_days`, in days; 0: lags count time levels; None (default): the most frequent time step.
    target_transforms : mapping of str to TargetTransform
        Transforms by the names of targets; samples then hold the transformed targets.
    coordinates : mapping of str to str
        The variables that the user names for "lat", "lon", "time" and "station".
    dimensions : mapping of str to str
        Pairs of names of one dimension.
    reading : Reading
        Format, missing values and format of times.
    longitude_ranges : mapping of str to tuple (float, float)
        Ranges of the inputs on which a network was trained, by name; longitudes outside are shifted towards them by
        whole turns.
    is_resumed : bool
        Whether the network's inputs are fixed, so that none are proposed; default False.
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
    reading: Reading = NO_SETTINGS
    longitude_ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    is_resumed: bool = False

    @property
    def has_named_dimensions(self) -> bool:
        """Whether times are values and dimensions have names; with `data.rules=1` both are positions."""
        return self.rules != FIRST_RULES

    def describe(self, file: FieldFile) -> FileDescription:
        """Return the description of an open file, with the coordinates and dimensions that `data` names.

        Parameters
        ----------
        file : FieldFile
            An open file.

        Returns
        -------
        FileDescription
            The coordinates, axes and times of its variables.
        """
        return FileDescription(file, self.coordinates, self.dimensions, self.kind == "fields")


def default_or_given_names(variables: VariablesSection) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of inputs and targets in the settings; the default is those of a CICE history."""
    return tuple(variables.input_variables or CICE_INPUTS), tuple(variables.output_variables or (CICE_TARGET,))


def selection_of(
    config: RunConfig, files: Sequence[str] | None = None, without_held_out: bool = False, to_learn: bool = False
) -> Selection:
    """Return the settings of a run that decide what a source reads.

    Parameters
    ----------
    config : RunConfig
        The settings of the run.
    files : sequence of str or None
        Paths and patterns; None (default): those of `data.data_path`.
    without_held_out : bool
        Whether to omit the files of `data.validation_path`; default False.
    to_learn : bool
        Whether targets are transformed by `model.output_transforms`; default False: they are as in the files.

    Returns
    -------
    Selection
        No file is opened.
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
    """Return the selection of `config` for predictions: all samples of `files`, without thinning, limit or weights."""
    selection = selection_of(config, files, without_held_out=True)
    return replace(selection, max_patterns=None, thin_fraction=1.0, is_area_weighted=False, weighs_loss=False)


def with_names_of_file(loaded: LoadedConfig) -> LoadedConfig:
    """Return the settings with the inputs and targets that the first data file names, if the settings name none.

    Files that were collected in a running model have the global attributes `input_variables` and `output_variables`; a
    notice mentions their `weight_variable`. If the file cannot be read, the settings are returned as they are: opening
    the file reports the error.
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
    advice = f"set data.area_variable={weight} training.area_weighted_loss=true to use them"
    notice = f"{path}: stratified samples, trained on without their weights; {advice}"
    return replace(loaded, config=with_names, notices=(*loaded.notices, notice))


def expand_paths(entries: Sequence[str]) -> tuple[Path, ...]:
    """Return the files of paths and of patterns such as "year_*.nc", each file once.

    Parameters
    ----------
    entries : sequence of str
        Paths and patterns; `**` matches folders at any depth, and `~` is the home folder.

    Returns
    -------
    tuple of Path
        In the order of `entries`; the matches of a pattern are in natural order (year_2 before year_10).

    Raises
    ------
    DataError
        There are no entries, a path does not exist, or a pattern matches nothing.
    """
    if not entries:
        raise DataError("data.data_path is not set; name a file, a pattern such as 'year_*.nc', or a list of these")
    return tuple(dict.fromkeys(path for entry in entries for path in _matches(entry)))


def refuse_same_file(
    selection: Selection, paths: Sequence[Path], others: Sequence[Path], key: str, used_as: str = "data.data_path"
) -> None:
    """Raise DataError if one of `others`, which the setting `key` names, is one of `paths`, a link to it or a copy.

    `used_as` are the settings that name `paths`. With `data.rules=1` links and copies count as different files.
    """
    if not selection.has_named_dimensions:
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
            f"{other}: is in {key} and in {used_as}{name}; remove it from one of them: samples used for training or "
            "model selection do not show the skill on others"
        )


def name_files(files: Sequence[str]) -> str:
    """Return the files for a message.

    Parameters
    ----------
    files : sequence of str
        Paths and patterns.

    Returns
    -------
    str
        The files with a space between them; "data in memory" if a Python program passes the data.
    """
    return " ".join(files) if not any(is_in_temporary_folder(Path(file)) for file in files) else "data in memory"


def name_in_lines(lines: Sequence[str], files: Sequence[Path]) -> tuple[str, ...]:
    """Return lines that say "data" instead of the name of a temporary file with the data of a Python program."""
    passing = [str(file) for file in files if is_in_temporary_folder(file)]
    for name in passing:
        lines = [line.replace(name, "data") for line in lines]
    return tuple(lines)


def in_files(lines: Mapping[str, Path]) -> list[str]:
    """Return lines that each begin with the file to which they apply."""
    return [f"{path}: {line}" for line, path in lines.items()]


def natural_key(path: Path) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key for natural order, in which digits are compared by value."""
    parts = re.split(r"(\d+)", str(path))
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part)


def _matches(entry: str) -> list[Path]:
    path = Path(entry).expanduser()
    if is_data(path):  # also if its name contains a character of patterns
        return [path]
    if not _PATTERN.search(entry):
        problem = "a folder; add a pattern such as '*.nc'" if path.is_dir() else "no such file"
        if is_in_temporary_folder(Path(entry)):
            raise DataError(
                f"{entry}: {NOT_STORED}; pass them again from Python, or name a file with --data or "
                "data.validation_path"
            )
        raise DataError(f"{entry}: {problem}; set data.data_path to an existing file, a pattern or a list of these")
    found = sorted((Path(name) for name in glob.glob(str(path), recursive=True)), key=natural_key)
    files = [file for file in found if is_data(file)]
    if not files:
        raise DataError(f"{entry}: no file matches this pattern; set data.data_path to one that does")
    return files
