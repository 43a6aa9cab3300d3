"""One ensemble, in chronological order: plan, groups of ranks, data, members, results."""

from __future__ import annotations

import time
from dataclasses import replace

from mpitrain.comm import Ranks, mark_agreed
from mpitrain.comm.tensors import settle_tensors
from mpitrain.ensemble.beginning import (
    EnsembleRequest,
    load_settings,
    plan_ensemble,
    prepare_folder,
    trusts_code,
    with_defaults,
)
from mpitrain.ensemble.outcome import Ended, Known, LoneFailures, read_outcome
from mpitrain.ensemble.plan.estimate import Estimator, longest_first, render_dry_run
from mpitrain.ensemble.plan.members import EnsemblePlan, Member
from mpitrain.ensemble.results import describe_end, finish_ensemble
from mpitrain.ensemble.training.worker import remember_members, train_members
from mpitrain.errors import MpitrainError, StoppedError, TrainingError
from mpitrain.models.files.torchscript import check_sums
from mpitrain.train import CheckpointStore, ClaimedFolder, RunFolder, trusts_code_of
from mpitrain.train.folder.claim import claimed


def run_ensemble(ranks: Ranks, request: EnsembleRequest) -> int:
    """Train all members and write the ensemble's folder; return exit code 0. Collective.

    Raises the errors of `mpitrain.errors` on all ranks together; the error of a single member is put into the table.
    """
    started_s = time.monotonic()
    trusted = replace(request, trust_code=ranks.on_root(lambda: trusts_code(request)))
    loaded = ranks.on_all_ranks(lambda: load_settings(trusted))
    plan = ranks.on_all_ranks(lambda: plan_ensemble(trusted, loaded.config))
    plan, of_defaults = with_defaults(plan, ranks)
    ranks.note(*loaded.notices)
    if request.dry_run:
        for line in render_dry_run(plan, ranks):
            ranks.say(line)
        return 0
    settle_tensors(ranks, loaded.config.semantics, loaded.config.compute, loaded.config.training)
    ranks.note(*ranks.notices, *of_defaults)
    with claimed(ranks, RunFolder(plan.folder), request.takes_over) as claim:
        ranks.on_root(lambda: prepare_folder(plan, request))
        _train_and_finish(ranks, plan, claim, request.trust_code, started_s)
    return 0


def _train_and_finish(
    ranks: Ranks, plan: EnsemblePlan, claim: ClaimedFolder, trust_code: bool, started_s: float
) -> None:  # fmt: skip
    ranks.write_failures_to(RunFolder(plan.folder).logs)
    ranks.end_start()
    known = ranks.on_root(lambda: _known_outcomes(plan))
    todo = longest_first([one for one in plan.members if one.number not in known], Estimator(ranks, plan))
    ended = train_members(ranks, plan, todo, known, claim)
    ranks.on_root(claim.check_claim)
    ranks.on_root(lambda: remember_members(plan, todo, ended.results))
    trusted = ranks.on_root(lambda: trusts_code_of(plan.folder, trust_code))
    held_out = finish_ensemble(ranks, plan, ended, trusted)
    for line in describe_end(plan, ended, held_out, time.monotonic() - started_s, ranks.world_size):
        ranks.say(line)
    _raise_if_unfinished(plan, ended)


def _known_outcomes(plan: EnsemblePlan) -> Known:
    """Return the outcomes of members not to train again: those that have ended, or that ended all ranks too often."""
    known: Known = {}
    for member in plan.members:
        folder = plan.folder_of(member)
        outcome = read_outcome(folder)
        if outcome is None or outcome.number != member.number or not (outcome.is_failure or _is_whole(plan, member)):
            outcome = LoneFailures(folder).outcome_of(member.number)
        if outcome is not None:
            known[member.number] = outcome
    return known


def _is_whole(plan: EnsemblePlan, member: Member) -> bool:
    """Return whether a member's files are undamaged: a power cut may have damaged those of short trainings."""
    folder = RunFolder(plan.folder_of(member), plan.config.output.model_file)
    try:
        CheckpointStore(folder.checkpoints).load_latest()
        check_sums(folder.model)
    except (MpitrainError, OSError, RuntimeError):
        return False
    return True


def _raise_if_unfinished(plan: EnsemblePlan, ended: Ended) -> None:
    if ended.signal_name is not None:
        left = len(plan.members) - len(ended.results)
        raise mark_agreed(
            StoppedError(f"stopped by {ended.signal_name}; {left} members have not ended; continue with --resume")
        )
    if not any(outcome.status == "done" for outcome in ended.results.values()):
        first = ended.results[min(ended.results)]
        raise mark_agreed(TrainingError(f"no member was trained successfully; the first: {first.message}"))
