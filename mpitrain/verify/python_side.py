"""Python's side of the verification, started under mpirun: `python -m mpitrain.verify.python_side JOBS.json`.

One launch runs all jobs of one number of ranks, since starting the ranks takes longer than a job.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mpitrain.comm import Ranks, open_tensors, run_on_all_ranks
from mpitrain.config import RunConfig, load_run_config
from mpitrain.data import TRAINING
from mpitrain.data.dataset.batches import EpochOrder, members_of
from mpitrain.data.dataset.split_rule import split_rule
from mpitrain.verify.cases import TRACE_STEPS, weights_for_cpp
from mpitrain.verify.machine_facts import as_attributes, facts_of_this_rank
from mpitrain.verify.trace import Trace, write_trace
from mpitrain.verify.traced_run import Recorded, record_run


def main() -> int:
    """Run the jobs in the file that the command line names; return the exit code."""
    jobs = json.loads(Path(sys.argv[1]).read_text())
    return run_on_all_ranks(lambda ranks: do_jobs(ranks, jobs))


def do_jobs(ranks: Ranks, jobs: Sequence[Mapping[str, Any]]) -> int:
    """Train for each job and write its files; return exit code 0. Collective."""
    for job in jobs:
        # On CPUs and with MPI, like the C++ program, on any machine and with any settings. The eager engine is the
        # definition; the others agree with it up to rounding.
        settings = [*job["settings"], "compute.device=cpu", "compute.backend=mpi", "training.engine=eager"]
        path = Path(job["config"]) if job["config"] else None
        config = ranks.on_all_ranks(lambda path=path, settings=settings: load_run_config(path, settings).config)  # type: ignore[misc]
        with open_tensors(ranks, config.semantics, config.compute, config.training, config.distributed.timeout_s):
            recorded = record_run(config, ranks, TRACE_STEPS)
            recorded.trace.attributes |= as_attributes(ranks.gather_object(facts_of_this_rank(os.environ)))
            ranks.on_root(lambda config=config, job=job, recorded=recorded: _write(config, job, recorded))  # type: ignore[misc]
    return 0


def _write(config: RunConfig, job: Mapping[str, Any], recorded: Recorded) -> None:
    write_trace(Path(job["trace"]), recorded.trace)
    if weights_for_cpp(config.model.initial_weights) is None:
        _write_initial_weights(Path(job["initial_weights"]), config.model.hidden_size, recorded.trace)
    if config.semantics == "standard":
        _write_batch_order(Path(job["batch_order"]), config, recorded)


def _write_batch_order(path: Path, config: RunConfig, recorded: Recorded) -> None:
    """Write the samples of each step of `standard` semantics, for the C++ program. Called on one rank.

    training_index (n_train,): positions among the valid selected samples; batch_order (step, V, b): training sample
    numbers, -1 for a row of weight zero.
    """
    plan, num_epochs = recorded.plan, config.training.epochs
    roles = split_rule(config.split_data).roles(np.arange(len(recorded.selected)), 0)
    training = np.flatnonzero(roles == TRAINING)
    orders = [
        EpochOrder(v, len(members_of(v, plan.num_virtual_ranks, len(training))), plan, config.seed, config.shuffle)
        for v in range(plan.num_virtual_ranks)
    ]
    order = np.empty((num_epochs * plan.steps_per_epoch, plan.num_virtual_ranks, plan.microbatch_rows), dtype=np.int64)
    for epoch in range(num_epochs):
        for v, own in enumerate(orders):
            own.start_epoch(epoch)
            members = np.concatenate(
                [members_of(v, plan.num_virtual_ranks, len(training)), np.full(plan.microbatch_rows, -1)]
            )
            for step in range(plan.steps_per_epoch):
                rows = np.minimum(own.rows(step), len(members) - 1)
                order[epoch * plan.steps_per_epoch + step, v] = members[rows]
    write_trace(path, Trace({"training_index": training, "batch_order": order}))


def _write_initial_weights(path: Path, hidden_size: int, trace: Trace) -> None:
    """Write the initial weights of Python's side with all digits, from which the C++ program starts too."""
    prefix = "initial."
    arrays = {name.removeprefix(prefix): values for name, values in trace.arrays.items() if name.startswith(prefix)}
    write_trace(path, Trace(arrays, {"hidden_size": np.int64(hidden_size)}))


if __name__ == "__main__":
    sys.exit(main())
