"""Python's side of the verification, started under mpirun: `python -m mpitrain.verify.python_side JOBS.json`.

One launch does all jobs of one rank count, since starting the ranks takes longer than a job.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mpitrain.comm.ranks import Ranks
from mpitrain.comm.start import run_on_all_ranks
from mpitrain.comm.tensors import open_tensors
from mpitrain.config import RunConfig, load_run_config
from mpitrain.verify.cases import TRACE_STEPS, weights_for_cpp
from mpitrain.verify.faults import stages_of
from mpitrain.verify.machine_facts import as_attributes, facts_of_this_rank
from mpitrain.verify.recorder import Recorded, record_run, write_batch_order, write_initial_weights
from mpitrain.verify.trace import write_trace


def main() -> int:
    """Do the jobs of the file that the command line names; return the exit code."""
    jobs = json.loads(Path(sys.argv[1]).read_text())
    return run_on_all_ranks(lambda ranks: _do_all(ranks, jobs))


def _do_all(ranks: Ranks, jobs: list[dict[str, Any]]) -> int:
    for job in jobs:
        # On CPUs and over MPI, as the C++ program runs, whatever this machine has and the user trains with.
        settings = [*job["settings"], "compute.device=cpu", "compute.backend=mpi"]
        path = Path(job["config"]) if job["config"] else None
        config = ranks.on_all_ranks(lambda path=path, settings=settings: load_run_config(path, settings).config)  # type: ignore[misc]
        with open_tensors(ranks, config):
            recorded = record_run(config, ranks, TRACE_STEPS, stages_of(job.get("fault")))
            recorded.trace.attributes |= as_attributes(ranks.gather_object(facts_of_this_rank(os.environ)))
            ranks.on_root(lambda config=config, job=job, recorded=recorded: _write(config, job, recorded))  # type: ignore[misc]
    return 0


def _write(config: RunConfig, job: Mapping[str, Any], recorded: Recorded) -> None:
    write_trace(Path(job["trace"]), recorded.trace)
    if job.get("fault"):
        return
    if weights_for_cpp(config) is None:
        write_initial_weights(Path(job["initial_weights"]), config, recorded.trace)
    if config.semantics == "standard":
        write_batch_order(Path(job["batch_order"]), config, recorded)


if __name__ == "__main__":
    sys.exit(main())
