"""Logs of the ranks (notices, facts of the launch, errors that end it) and experiment trackers."""

from __future__ import annotations

import functools
import logging
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from mpitrain.cluster import detect_affinity, package_versions
from mpitrain.cluster.facts import machine_facts, variables_of_launch
from mpitrain.comm import Ranks
from mpitrain.comm.mpi.library import mapped_library_path
from mpitrain.config import RunConfig
from mpitrain.errors import MpitrainError, StoppedError
from mpitrain.observe import BackgroundTracker, RunSummary
from mpitrain.observe.logs import closing_log, start_rank_log, warnings_into
from mpitrain.observe.trackers.open_trackers import final_values, open_trackers, where_to_look
from mpitrain.runs.prepared_run import PreparedRun
from mpitrain.train import Checkpoint, RunFolder


def _log(logger: logging.Logger, text: str, level: int) -> None:
    """Log what the root prints, line by line."""
    for line in text.splitlines():
        logger.log(level, "%s", line)


def log_start(logger: logging.Logger, ranks: Ranks, prepared: PreparedRun) -> None:
    """Log this rank and its device, on the root the time that the start took, and more at level debug. Collective.

    The level may differ between ranks. At level debug a rank logs its share of the work and its environment.
    """
    identity = f"rank {ranks.rank} of {ranks.world_size}, process {os.getpid()}, device {ranks.device}"
    torch: Any = sys.modules.get("torch")  # None if this run does not use torch
    loaded = "" if torch is None else f"torch {torch.__version__}, "
    logger.info("%s, %s%d threads", identity, loaded, ranks.num_threads)
    of_ranks = ranks.gather_object(ranks.starting.times)
    for line in describe_start(of_ranks) if ranks.is_root else ():
        logger.info("start: %s", line)
    if not logger.isEnabledFor(logging.DEBUG):
        return
    facts = {**_part_of(prepared), **_rank_facts(ranks), **machine_facts(os.environ)}
    for name, value in facts.items():
        logger.debug("%s: %s", name, value or "-")
    logger.debug("versions: %s", ", ".join(f"{name} {version or '-'}" for name, version in package_versions().items()))
    for stage, seconds in ranks.starting.times:
        logger.debug("start: %.3f s %s", seconds, stage)


def _rank_facts(ranks: Ranks) -> dict[str, str]:
    """Return this rank's launcher, place, device, cores, MPI library and environment variables."""
    return {
        "launcher": f"{ranks.info.source}, transport {ranks.transport}, backend {ranks.backend or '-'}",
        "place": f"rank {ranks.rank} of {ranks.world_size}, {ranks.local_rank} of {ranks.local_world_size} on node "
        f"{ranks.node_rank} of {ranks.num_nodes} ({ranks.host})",
        "device": f"{ranks.device}, {ranks.num_threads} threads, reduction {ranks.reduction}",
        "cores": f"{sorted(detect_affinity())}, {ranks.node_cores} of the node",
        "mpi_library_path": mapped_library_path(),
        "variables": variables_of_launch(os.environ),
    }


def describe_start(of_ranks: Sequence[Sequence[tuple[str, float]]]) -> list[str]:
    """Return one line per stage of the start: its median time over ranks, the slowest rank and its time, in s."""
    taken: dict[str, dict[int, float]] = {}
    for rank, times in enumerate(of_ranks):
        for stage, seconds in times:
            of_stage = taken.setdefault(stage, {})
            of_stage[rank] = of_stage.get(rank, 0.0) + seconds
    slowest = {stage: max(of_stage, key=of_stage.__getitem__) for stage, of_stage in taken.items()}
    return [
        f"{stage}: {statistics.median(of_stage.values()):.3f} s, slowest rank {slowest[stage]} "
        f"{of_stage[slowest[stage]]:.3f} s"
        for stage, of_stage in taken.items()
    ]


def _part_of(prepared: PreparedRun) -> dict[str, str]:
    """Return the data and batches of the run, this rank's microbatches, and the engine."""
    plan, summary, kernel = prepared.plan, prepared.dataset.summary, prepared.choice.kernel
    owned = prepared.layout.virtual_ranks.owned
    return {
        "data": f"{summary.num_training_samples} training samples, {summary.num_validation_samples} for validation, "
        f"{summary.num_test_samples} for a test, "
        f"inputs {' '.join(summary.input_names)}, targets {' '.join(summary.target_names)}",
        "batches": f"{plan.steps_per_epoch} steps an epoch of {plan.global_batch_size} samples, "
        f"{plan.microbatch_rows} a microbatch",
        "part": f"microbatches {owned.start} to {owned.stop - 1} of {plan.num_virtual_ranks}",
        "engine": prepared.choice.description + (f", {kernel._name}" if kernel is not None else ""),
    }


@contextmanager
def run_log(ranks: Ranks, level: str) -> Iterator[logging.Logger]:
    """Keep this rank's log during the block. Not collective.

    An error that ends the block is logged; warnings of libraries are logged and not printed. The log is written into
    the folder that `log_into` names.
    """
    logger = start_rank_log(ranks.rank, getattr(logging, level.upper()))
    previous, ranks.on_output = ranks.on_output, functools.partial(_log, logger)
    try:
        with closing_log(logger), warnings_into(logger) as warned, logging_errors(logger):
            yield logger
    finally:
        ranks.on_output = previous
    if warned and ranks.failure_folder is not None:
        number = "a library warning is" if len(warned) == 1 else f"{len(warned)} library warnings are"
        ranks.note(f"{number} in {ranks.failure_folder}")


@contextmanager
def logging_errors(logger: logging.Logger) -> Iterator[None]:
    """Log the error that ends the block: an error that is raised on all ranks is then in the log of each rank."""
    try:
        yield
    except StoppedError as error:
        logger.warning("%s", error)
        raise
    except MpitrainError as error:
        logger.error("%s", error)
        raise


@contextmanager
def tracking(
    ranks: Ranks, config: RunConfig, folder: RunFolder, checkpoint: Checkpoint | None
) -> Iterator[Sequence[BackgroundTracker]]:
    """Open the experiment trackers on the root, and close them with the outcome of the block.

    Collective if there are any, so that all ranks start to train together.
    """
    if not config.tracking.is_on:
        yield ()
        return
    ranks.starting.now("opening the trackers")
    ranks.say(*where_to_look(config.tracking, folder.tracking))
    first_step = int(checkpoint.state["global_step"]) if checkpoint else 0
    with ExitStack() as stack:
        trackers: Sequence[BackgroundTracker] = ()
        if ranks.is_root:
            opened = open_trackers(config, folder.tracking, first_step, ranks.note)
            trackers = stack.enter_context(opened)
        ranks.barrier()
        yield trackers


def report_end(trackers: Sequence[BackgroundTracker], summary: RunSummary) -> None:
    """Report the final values of the run to the trackers. Not collective."""
    for tracker in trackers:
        tracker.finish(summary.steps or 0, final_values(summary))
