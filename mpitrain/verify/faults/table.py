"""All faults, in the order of the stages of a run."""

from __future__ import annotations

from mpitrain.verify.faults.in_data import DATA_FAULTS
from mpitrain.verify.faults.in_training import TRAINING_FAULTS
from mpitrain.verify.stages import Stages

FAULTS = (*DATA_FAULTS, *TRAINING_FAULTS)


def stages_of(fault: str | None) -> Stages:
    """Return the stages of a run with the fault of this name in them; the package's own for None."""
    return Stages() if fault is None else {known.name: known.stages for known in FAULTS}[fault]
