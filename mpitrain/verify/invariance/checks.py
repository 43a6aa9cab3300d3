"""The five checks, with the names that climate models use, and the settings for which one of them may differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mpitrain.config import DistributedSection, RunConfig, TrainingSection
from mpitrain.errors import UserError


@dataclass(frozen=True)
class Check:
    """One way to run again; `needs_mpi_counts`: only possible if several numbers of ranks are given."""

    name: str
    title: str
    needs_mpi_counts: bool = False


REP = Check("REP", "the same run again")
PEM = Check("PEM", "on other numbers of ranks", True)
ERS = Check("ERS", "stopped and resumed")
ERP = Check("ERP", "stopped and resumed on another number of ranks", True)
PET = Check("PET", "started by torchrun, without MPI")
CHECKS = (REP, PEM, ERS, ERP, PET)


def named_checks(names: Sequence[str]) -> tuple[Check, ...]:
    """Return the checks of these names, in the order of `CHECKS`; all if there are no names. Raises UserError."""
    known = {check.name: check for check in CHECKS}
    for name in names:
        if name not in known:
            raise UserError(f"--case {name!r}: no such check of --invariance; there are {', '.join(known)}")
    return tuple(check for check in CHECKS if not names or check.name in names)


def known_reasons(check: Check, config: RunConfig, num_ranks: Sequence[int]) -> list[str]:
    """Return the reasons in the settings for a different result of `check`, each with what to set instead."""
    reasons = []
    if check.needs_mpi_counts:
        reasons += _reasons_of_rank_counts(config.semantics, config.training, config.distributed, max(num_ranks))
    elif check is PET:
        reasons += _reasons_of_launcher(config.semantics, adds_freely(config.training, config.distributed))
    if config.model.is_code:
        reasons.append(
            f"model.name={config.model.name} is your own code: random numbers and state outside of its parameters are "
            "not known to the package"
        )
    return reasons


def _reasons_of_rank_counts(
    semantics: str, training: TrainingSection, distributed: DistributedSection, most_ranks: int
) -> list[str]:
    if semantics == "reference":
        return [
            "semantics=reference depends on the number of ranks: each has as many samples as the smallest share, and "
            "the sum is divided by the number of ranks; semantics=standard does not depend on it"
        ]
    by_batch = training.batch_size not in (None, "full")
    scales_by_ranks = training.learning_rate_scaling != "none" and training.learning_rate_scaling_by != "batch_size"
    rules = (
        (
            adds_freely(training, distributed),
            _FREE_ORDER + "training.reduction=fixed gives the same bits on any number of ranks",
        ),
        (
            by_batch,
            f"training.batch_size={training.batch_size} is per rank, so that the batch grows with the number of ranks; "
            "with training.global_batch_size it does not",
        ),
        (
            scales_by_ranks,
            "training.learning_rate_scaling_by=ranks makes the learning rate depend on the number of ranks; "
            "with batch_size it does not",
        ),
        (
            training.virtual_ranks is not None and most_ranks > training.virtual_ranks,
            f"training.virtual_ranks={training.virtual_ranks} is raised for {most_ranks} ranks; leave it out, "
            "so that it follows from the batch",
        ),
    )
    return [text for applies, text in rules if applies]


def _reasons_of_launcher(semantics: str, is_free: bool) -> list[str]:
    if semantics == "reference":
        return ["semantics=reference needs MPI: its result is defined by the order of one MPI library's Allreduce"]
    return [_FREE_ORDER + "training.reduction=fixed gives the same bits with any launcher"] if is_free else []


_FREE_ORDER = (
    "training.reduction=any adds in an order that depends on the ranks and on the library between them: equal up to "
    "rounding only; "
)


def adds_freely(training: TrainingSection, distributed: DistributedSection) -> bool:
    """Return whether the order of additions is left to a library."""
    uses_ddp = training.engine == "ddp" or distributed.strategy == "ddp"
    return training.reduction == "any" or uses_ddp
