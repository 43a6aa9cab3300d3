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
    """Results for the report page; None and empty values are left out of it."""

    skills: Sequence[Skill] = ()
    """Errors of each target."""
    of_samples: str = ""
    """Sentence on the samples of `skills`."""
    pairs: Pairs | None = None
    """Some true and predicted values."""
    first: Pairs | None = None
    """True and predicted values of the first samples, from which `course` is chosen."""
    course: Course | None = None
    """Values of the first samples over time."""
    error_map: bytes | None = None
    """Map of the errors of the first target, as PNG."""
    derivatives: Derivatives | None = None
    """Derivatives of the network's outputs with respect to its inputs."""
    settings: Sequence[str] = ()
    """Sentences on data, network and training."""
    rmse_map: bytes | None = None
    """Map of the root mean square error of the first target, as PNG; shown only with `error_map`."""
    places: GridErrors | None = None
    """Errors of the first target on held-out samples, by grid point."""

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
