"""Python's side of the verification, started under mpirun: `python -m mpitrain.equivalence.python_side JOBS.json`.

One launch does all jobs of one rank count, since starting the ranks takes longer than a job.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from mpitrain.comm.session import Session, open_session
from mpitrain.comm.world import World, run_on_all_ranks
from mpitrain.config import RunConfig, load_run_config
from mpitrain.data import samples as samples_room
from mpitrain.data.samples import Samples
from mpitrain.equivalence.cases import TRACE_STEPS, weights_for_cpp
from mpitrain.equivalence.faults import planted
from mpitrain.equivalence.recorder import record_run, write_batch_order, write_initial_weights
from mpitrain.equivalence.trace import write_trace
from mpitrain.models.build import build_model
from mpitrain.models.initial_weights import load_initial_weights
from mpitrain.train.settings import DTYPES
from mpitrain.train.setup import TrainingParts


def main() -> int:
    """Do the jobs of the file that the command line names; return the exit code."""
    jobs = json.loads(Path(sys.argv[1]).read_text())
    return run_on_all_ranks(lambda world: _do_all(world, jobs))


def _do_all(world: World, jobs: list[dict[str, Any]]) -> int:
    for job in jobs:
        path = Path(job["config"]) if job["config"] else None
        config = world.together(lambda path=path, job=job: load_run_config(path, job["settings"]).config)  # type: ignore[misc]
        config = _as_the_cpp_program_runs(config)
        with open_session(world, config) as session:
            _do(session, config, job)
    return 0


def _as_the_cpp_program_runs(config: RunConfig) -> RunConfig:
    # On CPUs and over MPI, whatever this machine has and the user trains with.
    compute = config.compute.model_copy(update={"device": "cpu", "backend": "mpi"})
    return config.model_copy(update={"compute": compute})


def _do(session: Session, config: RunConfig, job: Mapping[str, Any]) -> None:
    path = Path(str(config.data.data_path))
    with _fault(job):
        samples = session.together(
            lambda: samples_room.read_samples(path, config.domain.pole, config.domain.clean_data)
        )
        trace, parts, median_step_us = record_run(config, session, samples, TRACE_STEPS)
    session.together(lambda: _write(session, config, job, parts, samples))
    if session.is_root:
        trace.attributes = {"median_us_per_step": median_step_us}
        write_trace(Path(job["trace"]), trace)


@contextlib.contextmanager
def _fault(job: Mapping[str, Any]) -> Iterator[None]:
    with planted(job["fault"]) if job.get("fault") else contextlib.nullcontext():
        yield


def _write(session: Session, config: RunConfig, job: Mapping[str, Any], parts: TrainingParts, samples: Samples) -> None:
    if not session.is_root or job.get("fault"):
        return
    if weights_for_cpp(config) is None:
        write_initial_weights(Path(job["initial_weights"]), config, _initial_model(config, samples))
    if parts.plan is not None:
        write_batch_order(Path(job["batch_order"]), config, parts.plan, samples, config.training.epochs)


def _initial_model(config: RunConfig, samples: Samples) -> nn.Module:
    num_inputs, num_targets = samples.inputs.shape[1], samples.targets.shape[1]
    model = build_model(config.model, num_inputs, num_targets, config.seed, DTYPES[config.training.dtype])
    if config.model.initial_weights is not None:
        load_initial_weights(model, Path(config.model.initial_weights))
    return model


if __name__ == "__main__":
    sys.exit(main())
