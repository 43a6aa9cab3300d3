"""The sections `variables`, `domain` and `data`: what a sample is, and where the samples come from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mpitrain.config.section import Count, CountOrZero, Names, Section, Text


class VariablesSection(Section):
    """Which variables of the data file are read."""

    input_variables: Names | None = None
    """Names of the input variables, in order; null means the seven of a CICE history file."""
    output_variables: Names | None = None
    """Names of the target variables; null means the ice concentration."""


class DomainSection(Section):
    """Which points of the grid are samples."""

    pole: Literal["north", "south"] = "north"
    """Hemisphere."""
    clean_data: bool = True
    """Keep ocean points with ice only (poleward of 40 degrees); false keeps all points poleward of 60 degrees."""
    mask_mode: Text | None = None
    """Name of another rule that selects points."""


class DataSection(Section):
    """Where the samples come from."""

    data_path: Text | None = None
    """CICE history file; null trains on a synthetic one that is written first."""
    validation_split: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Fraction of the samples held out for validation; null means 0.1 in `standard`, 0 in `reference`."""
    num_workers: CountOrZero = 0
    """Number of reader processes beside each rank."""
    num_samples: Count | None = None
    """Number of synthetic samples."""
    max_patterns: Count | None = None
    """Largest number of samples that are kept."""
    thin_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of the selected samples that is kept."""
