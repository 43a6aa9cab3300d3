"""The sections `variables`, `domain` and `data`: what a sample is, and where the samples come from."""

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
"""The versions of `data.rules` of a run that records none, and of a new one."""


class VariablesSection(Section):
    """Which variables of the data file are read."""

    reference_values: ClassVar[ReferenceValues] = {"input_variables": (), "output_variables": ()}

    input_variables: Names | None = None
    """Names of the input variables, in order; null means the seven of a CICE history file."""
    output_variables: Names | None = None
    """Names of the target variables; null means the ice concentration."""


class DomainSection(Section):
    """Which points of the grid are samples."""

    reference_values: ClassVar[ReferenceValues] = {
        "pole": ("north", "south"), "mask_mode": (), "mask": (), "latitude_range": (), "longitude_range": (),
        "min_ice_concentration": (),
    }  # fmt: skip
    needs: ClassVar[Needs] = {
        "clean_data": (
            lambda config: config.domain.mask_mode is None,
            "of no effect with domain.mask_mode, which selects points instead",
        ),
        "min_ice_concentration": (
            lambda config: config.domain.mask_mode in ("sea_ice", "ocean"),
            "of no effect without domain.mask_mode=sea_ice or ocean",
        ),
    }

    pole: Literal["north", "south", "both"] | None = None
    """Hemisphere: of a CICE history poleward of 40 degrees (60 without clean_data), else of all latitudes. Null means
    north for a CICE history, and both for other files and with mask_mode."""
    clean_data: bool = True
    """Of a CICE history keep ocean points with ice only (poleward of 40 degrees); false keeps all points poleward of 60
    degrees, of any file."""
    mask_mode: Literal["sea_ice", "ocean", "both", "all"] | None = None
    """Rule that selects points instead of clean_data, in the hemispheres that pole names: ocean points with ice
    (sea_ice), ocean points, both (the same, whatever min_ice_concentration), or all points. Ocean is where the file's
    ocean mask is 1, and without one where every target has a value."""
    min_ice_concentration: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Ice concentration that mask_mode=sea_ice keeps points above, and ocean points below; null: 0, and no limit."""
    mask: Text | None = None
    """Expression over variables of the file that a point must fulfil as well, such as "umask == 1 and sst_h > -1.5"."""
    latitude_range: Range | None = None
    """Southernmost and northernmost latitude, degrees."""
    longitude_range: Range | None = None
    """Westernmost and easternmost longitude, degrees; a range such as [350, 10] crosses the meridian."""


class CoordinatesSection(Section):
    """Which variables of the files say where and when values are, where their attributes do not."""

    latitude: Text | None = None
    """Name of the variable that holds latitudes, degrees north."""
    longitude: Text | None = None
    """Name of the variable that holds longitudes, degrees east."""
    time: Text | None = None
    """Name of the variable that holds the times, or of any other coordinate whose levels are taken as time levels."""
    station: Text | None = None
    """Name of the column, of numbers or text, that says which station, float or ship a row is of: lags are those of
    each; null finds it by CF's cf_role, and by usual names such as station, site_id, platform_number or trajectory."""


def _listed(paths: str | list[str] | None) -> list[str]:
    return [paths] if isinstance(paths, str) else list(paths or ())


class DataSection(Section):
    """Where the samples come from."""

    reference_values: ClassVar[ReferenceValues] = {
        "validation_split": (0,), "samples": (), "streaming": (), "area_weighted": (), "area_variable": (),
        "max_patterns": (), "thin_fraction": (), "folds": (), "split": ("random", "auto"), "validation_path": (),
        "test_path": (), "test_split": (0,),
    }  # fmt: skip
    needs: ClassVar[Needs] = {
        "num_workers": (
            lambda config: config.data.streaming,
            "of no effect without data.streaming=true: the samples are held in memory and need no reader",
        ),
        "shuffle_buffer_samples": (
            lambda config: config.data.streaming,
            "of no effect without data.streaming=true",
        ),
        "num_samples": (
            lambda config: config.data.data_path is None,
            "counts synthetic samples, of no effect with data.data_path; data.max_patterns limits a file's",
        ),
        "area_variable": (
            lambda config: config.data.area_weighted or config.training.area_weighted_loss,
            "of no effect without data.area_weighted=true or training.area_weighted_loss=true",
        ),
        "split": (
            lambda config: (
                config.data.split in ("auto", "random")
                or config.data.test_split
                or (config.validation_split and not config.data.validation_path)
            ),
            "of no effect, for no part of data.data_path is held out",
        ),
    }

    data_path: Text | list[Text] | None = None
    """A file, a pattern such as "year_*.nc", or a list of these (NetCDF, HDF5, Zarr, .npz, .pt, CSV, Parquet, or a
    format of your own); null trains on a synthetic CICE history file that is written first."""
    reader: Annotated[Any, READERS] = None
    """Format of all data files; null tells each by the end of its name, or by its first bytes."""

    @property
    def entries(self) -> list[str]:
        """The files and patterns of `data_path`; none where it is null."""
        return _listed(self.data_path)

    @property
    def validation_entries(self) -> list[str]:
        """The files and patterns of `validation_path`."""
        return _listed(self.validation_path)

    @property
    def test_entries(self) -> list[str]:
        """The files and patterns of `test_path`, without data in memory of a call that is over."""
        return [one for one in _listed(self.test_path) if not is_gone(Path(one))]

    coordinates: CoordinatesSection | None = None
    """Names of the variables that are latitude, longitude and time, such as {latitude: XLAT, longitude: XLONG, time:
    XTIME}; null finds them by the CF conventions (standard_name, units, axis, coordinates) and by usual names."""

    dimensions: (
        Annotated[dict[str, Text], Field(json_schema_extra={"allowed": "a mapping of names, such as {eta_u: eta_rho}"})]
        | None
    ) = None
    """Dimensions that are one under two names, such as {eta_u: eta_rho}; null: those that have one name, or equal
    coordinates. Variables lie along the dimensions of the targets, and are repeated along those that they lack."""

    time_format: Text | None = None
    """How times are written as text, or in the digits of numbers, such as "%d.%m.%Y %H:%M", or what numbers of the
    variable in `coordinates.time` count, such as "seconds since 1970-01-01"; null: as its units say, ISO 8601, and text
    that is a date in one way only, such as 31.12.2020."""
    missing_values: (
        Annotated[
            list[_NumberOrWord], Field(min_length=1, json_schema_extra={"allowed": "a list of numbers and words"})
        ]
        | None
    ) = None
    """Numbers, as stored, and words of tables that stand for a missing value, such as [-9999, "---"], beside what files
    say themselves; null: none."""

    @property
    def held_out_by(self) -> dict[str, Any]:
        """The settings that say which samples are held out together."""
        return {key: getattr(self, key) for key in ("split", "split_blocks", "group", "test_split")}

    @property
    def named_coordinates(self) -> dict[str, str]:
        """The names of `coordinates` by what they are: "lat", "lon", "time" and "station"."""
        named = self.coordinates or CoordinatesSection()
        pairs = {"lat": named.latitude, "lon": named.longitude, "time": named.time, "station": named.station}
        return {key: name for key, name in pairs.items() if name is not None}

    samples: Literal["points", "fields"] = "points"
    """What one sample is: a grid point (features,), or a whole time level (channels, rows, columns)."""
    validation_split: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Fraction of the samples held out for validation; null means 0.1 in `standard`, 0 in `reference`."""
    split: Literal["auto", "random", "time", "region", "group"] = "auto"
    """How held-out samples are chosen: each by itself, whole blocks of times, whole blocks of the grid, or whole
    groups, such as stations or basins, which `group` tells. auto: by time from 20 distinct times on; each by itself
    below that, for CICE histories, and where blocks of time are too large for the part that is held out, or many of
    them have no samples. A run records which."""
    rules: Annotated[int, Field(ge=1, le=NEWEST_RULES)] | None = None
    """Version of the rules by which files become samples, which each run records; null means the newest, 2. In version
    1, that of runs which record none, lags and split=time count time levels in the order of the files, levels that
    repeat others are samples, copies of training data are not refused, dimensions match by size, not by name, and
    numbers of 1e29 and more are missing."""
    lag_step_days: NumberOrZero | None = None
    """Length in days of the step of time that lags such as x[time-1] count, which each run records; 0: they count time
    levels in the order of the files; null: the most frequent step of the data."""
    split_blocks: Annotated[int, Field(ge=2)] | None = None
    """Number of blocks for `split`; null means 20 of time, about 64 of the grid."""
    group: Text | None = None
    """Variable of the files, of numbers or text, that tells the groups of split=group, or file: each file is one."""
    validation_path: Text | list[Text] | None = None
    """Files held out for validation, a pattern or a list of these, instead of a part of data_path."""
    test_path: Text | list[Text] | None = None
    """Files that are neither trained nor validated on, a pattern or a list of these: the skill on them is told at the
    end of the run, in its metrics and its report."""
    test_split: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Fraction of the samples that neither train nor choose the epoch, drawn as `split` says: the skill on them is told
    at the end of the run. null: a tenth of 5,000 usable samples and more; 0 of fewer, and of fewer than 6 blocks or
    groups, of CICE histories and synthetic data, in reference semantics, with data.rules=1, folds, validation_path,
    test_path, or a validation_split of 0 or above 0.5. A run records which; members of an ensemble have 0."""
    split_seed: CountOrZero | None = None
    """Seed of which samples are kept (`thin_fraction`) and which are held out; null means `seed`."""
    folds: Annotated[int, Field(ge=2)] | None = None
    """Deal the samples, or the blocks or groups of `split`, into this many parts by `split_seed`; the part `fold` is
    held out, the others train."""
    fold: CountOrZero | None = None
    """Which of the `folds` is held out, from 0; null means 0."""
    streaming: bool = False
    """Read the files anew in each epoch instead of holding them in memory; the order of the samples then differs."""
    shuffle_buffer_samples: Count = 65536
    """Samples that each virtual rank draws from at random while streaming; at most as many as 32 MiB hold."""
    shared_memory: bool = False
    """Accepted for configurations of older trainers, and without effect: each sample is held on one rank alone."""
    area_weighted: bool = False
    """Weigh the statistics of the normalisation by the area of each point: the cosine of the latitude, or
    area_variable; training.area_weighted_loss weighs the loss too."""
    area_variable: Text | None = None
    """Variable of the files that holds the cells' areas, in any unit; cells of no area are no samples. Null means the
    cosine of the latitude."""
    num_workers: CountOrZero = 0
    """While streaming: threads of each rank that read ahead while it computes; 0 means one."""
    num_samples: Count | None = None
    """Number of synthetic samples, where there is no data_path; null means one time level's."""
    max_patterns: Count | None = None
    """Largest number of samples that are kept, evenly spread over the selection."""
    thin_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of the selected samples that is kept, drawn by the seed."""
