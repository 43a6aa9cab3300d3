"""What the members say of samples that none of them has trained on, and how well their spread tells their error.

M  members      N  samples      O  targets
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mpitrain.data import SampleSource
from mpitrain.ensemble.calibration import Calibration, calibration_of
from mpitrain.ensemble.fold_values import FoldValues, open_member, values_of_fold
from mpitrain.errors import DataError
from mpitrain.inference.page.findings import draw_place_map
from mpitrain.models import StoredNetwork
from mpitrain.observe import ErrorSums, MapLook, PlaceErrors, Skill, error_look


@dataclass(frozen=True)
class HeldOut:
    """The members on held-out samples: calibration of the first target, skill of their mean, and maps as PNG by title.

    All is over the first samples that are held out, `skills` of each target; `truth` and `mean` (N,) are the first's.
    """

    calibration: Calibration
    skills: Sequence[Skill]
    truth: npt.NDArray[np.float64]
    mean: npt.NDArray[np.float64]
    maps: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The first target with its units."""
        return _label(self.skills[0])

    @property
    def of_samples(self) -> str:
        """Which samples these are."""
        return f"The mean of the members, over held-out samples: {self.skills[0].sums.count:,} values of each target."


def compare(folder: Path, rows: Sequence[Mapping[str, str]], networks: Mapping[str, StoredNetwork]) -> HeldOut | None:
    """Return what the members do on held-out samples; None where no two can be compared, or the data is gone.

    `rows` are those of the table; of their members those are compared that are in `networks`, by name. Members of one
    fold are compared on its samples; folds follow each other.
    """
    folds: dict[str, list[str]] = {}
    for row in rows:
        if row["member"] in networks:
            folds.setdefault(row["fold"], []).append(row["member"])
    several = [members for members in folds.values() if len(members) > 1]
    try:
        parts = [values_of_fold(folder / "members" / one[0], [networks[member] for member in one]) for one in several]
        found = [part for part in parts if part is not None]
        return _compared(open_member(folder / "members" / several[0][0]), found) if found else None
    except DataError:
        return None


def _compared(source: SampleSource, parts: Sequence[FoldValues]) -> HeldOut:
    # Members of different folds are different networks: they are compared as far as all folds have them.
    num_members = min(len(part.values) for part in parts)
    values = np.concatenate([part.values[:num_members, :, 0] for part in parts], axis=1)
    truth, mean = (
        np.concatenate(one) for one in zip(*((part.truth, part.values.mean(0)) for part in parts), strict=True)
    )
    units = [source.units.get(name, "") for name in source.target_names]
    sums = [ErrorSums() for _ in units]
    for number, one in enumerate(sums):
        one.add(truth[:, number], mean[:, number] - truth[:, number])
    skills = [Skill(name, unit, one) for name, unit, one in zip(source.target_names, units, sums, strict=True)]
    maps = _maps(source, parts, skills[0])
    return HeldOut(calibration_of(values, truth[:, 0]), skills, truth[:, 0], mean[:, 0], maps)


def _label(skill: Skill) -> str:
    return f"{skill.name} ({skill.units})" if skill.units not in ("", "1") else skill.name


def _maps(source: SampleSource, parts: Sequence[FoldValues], first: Skill) -> dict[str, bytes]:
    """Return maps of the first target: the mean of predicted minus data, and of the members' spread, at each place."""
    size = int(np.prod(source.grid_shape))
    label = _label(first)
    error = [PlaceErrors.of(part.index % size, part.values.mean(0)[:, 0] - part.truth[:, 0]) for part in parts]
    spread = [PlaceErrors.of(part.index % size, part.values[:, :, 0].std(0, ddof=1)) for part in parts]
    on_grid = [PlaceErrors.together(one).mean_on(source.grid_shape) for one in (error, spread)]
    over = f"over {first.sums.count:,} held-out samples"
    looks = (
        error_look(f"{first.name}, mean of predicted minus data {over}", label, on_grid[0]),
        MapLook(f"{first.name}, mean spread of the members {over}", f"spread of {label}"),
    )
    try:
        drawn = [draw_place_map(source, values, look) for values, look in zip(on_grid, looks, strict=True)]
    finally:
        source.close()
    titles = ("Where the errors are", "Where the members differ")
    return {title: picture for title, picture in zip(titles, drawn, strict=True) if picture is not None}
