"""What a run's page tells beside its losses; each part only where it is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mpitrain.observe.figures import image_of
from mpitrain.observe.page.derivatives import Derivatives, render_derivatives
from mpitrain.observe.page.pairs import Course, Pairs
from mpitrain.observe.page.places import PlaceErrors
from mpitrain.observe.page.skill import Skill, render_skill


@dataclass(frozen=True)
class Findings:
    """Skill of each target and `of_samples` it is; some `pairs` of values, and the `first` with their `course`.

    `error_map` and `rmse_map` are PNG, of the first target; `places` are its errors at each place of held-out samples.
    """

    skills: Sequence[Skill] = ()
    of_samples: str = ""
    pairs: Pairs | None = None
    first: Pairs | None = None
    course: Course | None = None
    error_map: bytes | None = None
    derivatives: Derivatives | None = None
    settings: Sequence[str] = ()
    rmse_map: bytes | None = None
    places: PlaceErrors | None = None

    @property
    def label(self) -> str:
        """The first target and its units, "" where there is none."""
        first = next(iter(self.skills), None)
        return "" if first is None else first.label


def render_findings(found: Findings) -> dict[str, str]:
    """Return HTML by heading."""
    parts: dict[str, str] = {}
    if any(one.sums.count for one in found.skills):
        parts["Skill"] = render_skill(found.skills, found.of_samples)
    if found.error_map is not None:
        shown = [(found.error_map, "predicted minus data"), (found.rmse_map, "root of the mean squared error")]
        parts["Where the errors are"] = "".join(
            image_of(one, f"Map of {found.label}: {words}") for one, words in shown if one is not None
        )
    if found.derivatives is not None:
        parts["Derivatives of the network"] = render_derivatives(found.derivatives)
    return parts
