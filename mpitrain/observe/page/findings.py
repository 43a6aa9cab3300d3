"""Results on the report page other than losses; each part is shown only if it is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mpitrain.observe.figures import image_of
from mpitrain.observe.page.derivatives import Derivatives, render_derivatives
from mpitrain.observe.page.pairs import Course, Pairs
from mpitrain.observe.page.places import GridErrors
from mpitrain.observe.page.skill import Skill, render_skill


@dataclass(frozen=True)
class Findings:
    """Results for the report page: skill of each target over the samples described by `of_samples`, and others.

    `pairs`: some true and predicted values; `first`: those of the first samples, with their `course` over time.
    `error_map`, `rmse_map`: PNG of the first target; `places`: its errors on held-out samples by grid point.
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
    places: GridErrors | None = None

    @property
    def label(self) -> str:
        """The first target with its units; "" if there is none."""
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
            image_of(one, f"Map of {found.label}: {text}") for one, text in shown if one is not None
        )
    if found.derivatives is not None:
        parts["Derivatives of the network"] = render_derivatives(found.derivatives)
    return parts
