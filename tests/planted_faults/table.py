"""All faults, in the order of the stages of a run."""

from __future__ import annotations

from planted_faults.in_data import DATA_FAULTS
from planted_faults.in_training import TRAINING_FAULTS

FAULTS = (*DATA_FAULTS, *TRAINING_FAULTS)
