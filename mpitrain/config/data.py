"""The sections `variables`, `domain` and `data`: variables, points and files of the samples, and held-out samples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from mpitrain.config.component import Room
from mpitrain.config.section import Count, CountOrZero, Names, Needs, NumberOrZero, ReferenceValues, Section, Text
from mpitrain.durable_files import is_gone

READERS = Room("data.reader", "mpitrain.data.formats", is_name=True)
_NumberOrWord = Annotated[float | Text, Field(json_schema_extra={"allowed": "a number or a word"})]
Range = Annotated[list[float], Field(min_length=2, max_length=2)]
FIRST_RULES, NEWEST_RULES = 1, 2
"""The versions of `data.rules` of runs that do not record one, and of new runs."""


class VariablesSection(Section):
    """Variables read from the data files."""

    reference_values: ClassVar[ReferenceValues] = {"input_variables": (), "output_variables": ()}

    input_variables: Names | None = None
    """Names of the input variables, in order; null: the seven inputs from a CICE history file."""
    output_variables: Names | None = None
    """Names of the target variables; null: the ice concentration."""


class DomainSection(Section):
    """Points of the grid that are samples."""

    reference_values: ClassVar[ReferenceValues] = {
        "pole": ("north", "south"), "mask_mode": (), "mask": (), "latitude_range": (), "longitude_range": (),
        "min_ice_concentration": (),
    }  # fmt: skip
    needs: ClassVar[Needs] = {
        "clean_data": (
            lambda config: config.domain.mask_mode is None,
            "has no effect with domain.mask_mode, which selects points instead",
        ),
        "min_ice_concentration": (
            lambda config: config.domain.mask_mode in ("sea_ice", "ocean"),
            "has no effect without domain.mask_mode=sea_ice or ocean",
        ),
    }

    pole: Literal["north", "south", "both"] | None = None
    """Hemisphere of the samples. With mask_mode=null: poleward of 40 degrees in CICE histories with clean_data=true,
    poleward of 60 degrees in any file with clean_data=false. Null: north in these two cases, otherwise both."""
    clean_data: bool = True
    """true: in CICE histories, keep only ocean points with ice, poleward of 40 degrees; false: in all files, keep all
    points poleward of 60 degrees."""
    mask_mode: Literal["sea_ice", "ocean", "both", "all"] | None = None
    """Selection of points instead of clean_data, in the hemispheres given by pole. sea_ice: ocean points with ice;
    ocean: ocean points; both: ocean points, regardless of min_ice_concentration; all: all points. Ocean points are
    those where the ocean mask of the file is 1; without an ocean mask, those where every target has a value."""
    min_ice_concentration: Annotated[float, Field(ge=0, lt=1)] | None = None
    """With mask_mode=sea_ice keep points with a larger ice concentration than this (null: 0), with mask_mode=ocean
    points with a smaller one (null: all)."""
    mask: Text | None = None
    """Additional condition on the points, an expression of variables in the file: "umask == 1 and sst_h > -1.5"."""
    latitude_range: Range | None = None
    """Southernmost and northernmost latitude in degrees."""
    longitude_range: Range | None = None
    """Westernmost and easternmost longitude in degrees; a range such as [350, 10] crosses the prime meridian."""


class CoordinatesSection(Section):
    """Coordinate variables of the files, for files whose attributes do not identify them."""

    latitude: Text | None = None
    """Name of the variable with latitudes in degrees north."""
    longitude: Text | None = None
    """Name of the variable with longitudes in degrees east."""
    time: Text | None = None
    """Name of the variable with times, or of another coordinate to be used as time."""
    station: Text | None = None
    """Name of the column, numbers or text, that identifies the station, float or ship of a row: lags are computed
    within each station. Null: found by CF's cf_role and by common names such as station, site_id, platform_number or
    trajectory."""


def _listed(paths: str | list[str] | None) -> list[str]:
    return [paths] if isinstance(paths, str) else list(paths or ())


class DataSection(Section):
    """The source of the samples, and the choice of held-out samples."""

    reference_values: ClassVar[ReferenceValues] = {
        "validation_split": (0,), "samples": (), "streaming": (), "area_weighted": (), "area_variable": (),
        "max_patterns": (), "thin_fraction": (), "folds": (), "split": ("random", "auto"), "validation_path": (),
        "test_path": (), "test_split": (0,),
    }  # fmt: skip
    needs: ClassVar[Needs] = {
        "num_workers": (
            lambda config: config.data.streaming,
            "has no effect without data.streaming=true: the samples are held in memory",
        ),
        "shuffle_buffer_samples": (
            lambda config: config.data.streaming,
            "has no effect without data.streaming=true",
        ),
        "num_samples": (
            lambda config: config.data.data_path is None,
            "has no effect with data.data_path: it is the number of synthetic samples; data.max_patterns limits the "
            "samples from files",
        ),
        "area_variable": (
            lambda config: config.data.area_weighted or config.training.area_weighted_loss,
            "has no effect without data.area_weighted=true or training.area_weighted_loss=true",
        ),
        "split": (
            lambda config: (
                config.data.split in ("auto", "random")
                or config.data.test_split
                or (config.validation_split and not config.data.validation_path)
            ),
            "has no effect because no part of data.data_path is held out",
        ),
    }

    data_path: Text | list[Text] | None = None
    """A file, a pattern such as "year_*.nc", or a list of these (NetCDF, HDF5, Zarr, .npz, .pt, CSV, Parquet, or a
    format of your own). Null: a synthetic CICE history file is written and used."""
    reader: Annotated[Any, READERS] = None
    """Format of all data files; null: determined for each file by the ending of its name, or by its first bytes."""

    @property
    def entries(self) -> list[str]:
        """The files and patterns of `data_path`; an empty list if it is null."""
        return _listed(self.data_path)

    @property
    def validation_entries(self) -> list[str]:
        """The files and patterns of `validation_path`."""
        return _listed(self.validation_path)

    @property
    def test_entries(self) -> list[str]:
        """The files and patterns of `test_path`, without data passed in memory by a call that has ended."""
        return [one for one in _listed(self.test_path) if not is_gone(Path(one))]

    coordinates: CoordinatesSection | None = None
    """Names of the coordinate variables, such as {latitude: XLAT, longitude: XLONG, time: XTIME}; null: found by the CF
    conventions (standard_name, units, axis, coordinates) and by common names."""

    dimensions: (
        Annotated[dict[str, Text], Field(json_schema_extra={"allowed": "a mapping of names, such as {eta_u: eta_rho}"})]
        | None
    ) = None
    """Pairs of names for the same dimension, such as {eta_u: eta_rho}; null: dimensions are the same if they have the
    same name or equal coordinates. Variables are broadcast to the dimensions of the targets."""

    time_format: Text | None = None
    """Format of times that are text or digits, such as "%d.%m.%Y %H:%M", or units of the numbers of the variable in
    `coordinates.time`, such as "seconds since 1970-01-01". Null: by the units attribute, ISO 8601, or an unambiguous
    date such as 31.12.2020."""
    missing_values: (
        Annotated[
            list[_NumberOrWord], Field(min_length=1, json_schema_extra={"allowed": "a list of numbers and words"})
        ]
        | None
    ) = None
    """Values that stand for a missing value in addition to those in the files' attributes: numbers (as stored) and text
    in tables, such as [-9999, "---"]; null: none."""

    @property
    def held_out_by(self) -> dict[str, Any]:
        """The settings of the split that a run records: `split`, `split_blocks`, `group` and `test_split`."""
        return {key: getattr(self, key) for key in ("split", "split_blocks", "group", "test_split")}

    @property
    def named_coordinates(self) -> dict[str, str]:
        """The names given in `coordinates`, by "lat", "lon", "time" and "station"."""
        named = self.coordinates or CoordinatesSection()
        pairs = {"lat": named.latitude, "lon": named.longitude, "time": named.time, "station": named.station}
        return {key: name for key, name in pairs.items() if name is not None}

    samples: Literal["points", "fields"] = "points"
    """A sample is a grid point (points: shape (features,)) or a whole time level (fields: shape (channels, rows,
    columns))."""
    validation_split: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Fraction of the samples held out for validation; null: 0.1 in `standard`, 0 in `reference`."""
    split: Literal["auto", "random", "time", "region", "group"] = "auto"
    """How held-out samples are chosen. random: single samples; time: whole blocks of times; region: whole blocks of the
    grid; group: whole groups given by `group`, such as stations or basins. auto: time if there are at least 20 distinct
    times; random if there are fewer, for CICE histories, and if blocks of time are too large for the held-out part or
    many of them have no samples. A run records its split."""
    rules: Annotated[int, Field(ge=1, le=NEWEST_RULES)] | None = None
    """Version of the rules for reading samples from files, recorded by each run; null: the newest, 2. Version 1 (runs
    that record none): lags and split=time count time levels in the order of the files, repeated levels are samples,
    copies of training data are not refused, dimensions are matched by size instead of name, and numbers of 1e29 and
    more are missing."""
    lag_step_days: NumberOrZero | None = None
    """Time step in days of lags such as x[time-1], recorded by each run; 0: lags count time levels in the order of the
    files; null: the most frequent time step of the data."""
    split_blocks: Annotated[int, Field(ge=2)] | None = None
    """Number of blocks for `split`; null: 20 blocks of time, about 64 blocks of the grid."""
    group: Text | None = None
    """Variable of the files, numbers or text, that identifies the groups of split=group; `file`: each file is a
    group."""
    validation_path: Text | list[Text] | None = None
    """File, pattern, or list of these, held out for validation instead of a part of data_path."""
    test_path: Text | list[Text] | None = None
    """File, pattern, or list of these, used neither for training nor for validation: the skill on these data is
    reported at the end of the run, in its metrics and its report."""
    test_split: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Fraction of the samples used neither for training nor to choose the best epoch, held out as given by `split`: the
    skill on them is reported at the end of the run. Null: 0.1 with 5,000 or more usable samples, otherwise 0; also 0
    for fewer than 6 blocks or groups, for CICE histories and synthetic data, in reference semantics, with data.rules=1,
    folds, validation_path, test_path, or a validation_split of 0 or above 0.5. A run records its value; members of an
    ensemble have 0."""
    split_seed: CountOrZero | None = None
    """Seed of the choice of kept samples (`thin_fraction`) and of held-out samples; null: `seed`."""
    folds: Annotated[int, Field(ge=2)] | None = None
    """Number of parts into which the samples, or the blocks or groups of `split`, are divided at random by
    `split_seed`; the part `fold` is held out, the others are used for training."""
    fold: CountOrZero | None = None
    """Number of the part of `folds` that is held out, from 0; null: 0."""
    streaming: bool = False
    """Read the files again in each epoch instead of holding the samples in memory; the order of the samples differs."""
    shuffle_buffer_samples: Count = 65536
    """While streaming: number of samples in each buffer from which samples are drawn at random; at most 32 MiB each."""
    shared_memory: bool = False
    """No effect; accepted for settings of older trainers. Each sample is held by one rank only."""
    area_weighted: bool = False
    """Weight the statistics of the normalisation by the area of each point: the cosine of the latitude, or
    area_variable; training.area_weighted_loss also weights the loss."""
    area_variable: Text | None = None
    """Variable of the files with the areas of the cells, in any unit; cells with area 0 are not samples. Null: the
    cosine of the latitude."""
    num_workers: CountOrZero = 0
    """While streaming: number of threads per rank that read ahead; 0: one."""
    num_samples: Count | None = None
    """Number of synthetic samples if there is no data_path; null: those of one time level."""
    max_patterns: Count | None = None
    """Maximum number of samples, evenly spread over the selected samples; null: all."""
    thin_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of the selected samples that is kept, chosen at random by the seed."""
