"""All faults: in which semantics each is injected, and at which stage the first difference must be named."""

from __future__ import annotations

from dataclasses import dataclass

from mpitrain.verify.faults.in_data import DATA_FAULTS
from mpitrain.verify.faults.in_training import TRAINING_FAULTS
from mpitrain.verify.stages import Stages


@dataclass(frozen=True)
class Fault:
    """A mistake, the semantics that it is planted in, and the stage at which the first difference must be named."""

    name: str
    semantics: str
    stage: str


FAULTS = (
    Fault("wrong pole", "reference", "selected samples"),
    Fault("aice < 1 for aice <= 1", "reference", "selected samples"),
    Fault("latitude >= 40 for > 40", "reference", "selected samples"),
    Fault("mask ignored", "reference", "selected samples"),
    Fault("contiguous partition for round robin", "reference", "partition"),
    Fault("no truncation to the smallest rank", "reference", "partition"),
    Fault("sample variance for population variance", "reference", "statistics"),
    Fault("mean of the ranks' means in float64", "reference", "statistics"),
    Fault("float64 statistics", "reference", "statistics"),
    Fault("hs and hi swapped", "reference", "statistics"),
    Fault("unweighted merge of moments", "standard", "statistics"),
    Fault("validation samples in the statistics", "standard", "statistics"),
    Fault("another seed for the weights", "reference", "initial weights"),
    Fault("stale normalisation", "reference", "forward"),
    Fault("activation between the layers", "reference", "forward"),
    Fault("sum of squares for their mean", "reference", "loss at step 1"),
    Fault("padding rows counted", "standard", "loss at step 1"),
    Fault("division by P instead of 7 P", "reference", "gradient at step 1"),
    Fault("scaling before the Allreduce", "reference", "gradient at step 1"),
    Fault("a lost rank's gradient", "reference", "gradient at step 1"),
    Fault("partials added in another order", "standard", "gradient at step 1"),
    Fault("mean of the slices' means", "standard", "gradient at step 1"),
    Fault("bias correction off by one", "reference", "weights at step 1"),
    Fault("eps inside the root", "reference", "weights at step 1"),
    Fault("torch's Adam arithmetic", "reference", "gradient at step 10"),
    Fault("Jacobian without the division by std", "reference", "Jacobian"),
)


def stages_of(fault: str | None) -> Stages:
    """Return the stages of a run with the fault of this name in them; the package's own for None."""
    return Stages() if fault is None else (DATA_FAULTS | TRAINING_FAULTS)[fault]
