"""One ensemble, in the order in which it happens: plan, groups, data, members, what comes out."""

from __future__ import annotations

import time
from dataclasses import replace

from mpitrain.comm.agreement import mark_agreed
from mpitrain.comm.ranks import Ranks
from mpitrain.comm.tensors import settle_tensors
from mpitrain.ensemble.beginning import (
    EnsembleRequest,
    load_settings,
    plan_ensemble,
    prepare_folder,
    with_defaults,
)
from mpitrain.ensemble.outcome import Ended, Known, LoneFailures, Outcome, read_outcomes
from mpitrain.ensemble.plan.estimate import Estimator, costs_of, render_dry_run
from mpitrain.ensemble.plan.members import EnsemblePlan
from mpitrain.ensemble.plan.search import Search, plan_search
from mpitrain.ensemble.results import describe_end, finish_ensemble
from mpitrain.ensemble.training.worker import train_members
from mpitrain.errors import MpitrainError, StoppedError, TrainingError
from mpitrain.models.files.torchscript import check_sums
from mpitrain.train.checkpoint.store import CheckpointStore
from mpitrain.train.folder.claim import ClaimedFolder, claimed
from mpitrain.train.run_folder import RunFolder


def run_ensemble(ranks: Ranks, request: EnsembleRequest) -> int:
    """Train all members and leave the ensemble's folder; return exit code 0. Collective.

    Raises the errors of `mpitrain.errors`, on all ranks together; a member's own error is in the table.
    """
    started_s = time.monotonic()
    loaded = ranks.on_all_ranks(lambda: load_settings(request))
    plan = ranks.on_all_ranks(lambda: plan_ensemble(request, loaded.config))
    plan, of_defaults = with_defaults(plan, ranks)
    if request.dry_run:
        for line in render_dry_run(plan, ranks):
            ranks.say(line)
        return 0
    settle_tensors(ranks, loaded.config.semantics, loaded.config.compute, loaded.config.training)
    ranks.note(*loaded.notices, *ranks.notices, *of_defaults)
    with claimed(ranks, RunFolder(plan.folder), request.takes_over) as claim:
        ranks.on_root(lambda: prepare_folder(plan, request))
        _train_and_finish(ranks, plan, claim, started_s)
    return 0


def _train_and_finish(ranks: Ranks, plan: EnsemblePlan, claim: ClaimedFolder, started_s: float) -> None:
    ranks.write_failures_to(RunFolder(plan.folder).logs)
    ranks.end_start()
    search = replace(plan_search(plan), costs=costs_of(plan.members, Estimator(ranks, plan)))
    known = ranks.on_root(lambda: _known_outcomes(plan, search))
    ended = train_members(ranks, plan, search, known, claim)
    ranks.on_root(claim.check_claim)
    finish_ensemble(ranks, plan, search, ended.results)
    for line in describe_end(plan, search, ended, time.monotonic() - started_s, ranks.world_size):
        ranks.say(line)
    _raise_if_unfinished(plan, ended)


def _known_outcomes(plan: EnsemblePlan, search: Search) -> Known:
    """Return what a resumed ensemble has done already."""
    found = {member.number: read_outcomes(plan.folder_of(member)) for member in plan.members}
    known = {
        (number, rung): outcome
        for number, outcomes in found.items()
        for rung, outcome in outcomes.items()
        if rung < len(search.rungs) and (outcome.is_failure or _is_whole(plan, outcome))
    }
    return known | _failed_on_some_ranks(plan, known)


def _failed_on_some_ranks(plan: EnsemblePlan, known: Known) -> Known:
    """Return the members that have ended all ranks too often, each on the rung after those that it has reached."""
    found: Known = {}
    for member in plan.members:
        rung = len([number for number, _ in known if number == member.number])
        failed = LoneFailures(plan.folder_of(member)).outcome_of(member.number, rung)
        found |= {} if failed is None else {(member.number, rung): failed}
    return found


def _is_whole(plan: EnsemblePlan, outcome: Outcome) -> bool:
    """Tell whether a member's files are as they were written: a power cut may have damaged those of short trainings."""
    folder = RunFolder(plan.folder_of(plan.members[outcome.number]), plan.config.output.model_file)
    try:
        CheckpointStore(folder.checkpoints).load_latest()
        if outcome.status == "done":
            check_sums(folder.model)
    except (MpitrainError, OSError, RuntimeError):
        return False
    return True


def _raise_if_unfinished(plan: EnsemblePlan, ended: Ended) -> None:
    if ended.signal_name is not None:
        left = len(plan.members) - len({number for number, _ in ended.results})
        raise mark_agreed(
            StoppedError(f"stopped by {ended.signal_name}; {left} members have not begun or are under way: --resume")
        )
    if not any(outcome.status == "done" for outcome in ended.results.values()):
        first = next(iter(ended.results.values()))
        raise mark_agreed(TrainingError(f"no member has ended well; the first: {first.message}"))
