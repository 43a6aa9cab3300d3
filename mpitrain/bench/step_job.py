"""The Python side of `mpitrain bench step`, started under mpirun: `python -m mpitrain.bench.step_job JOB.json`.

One launch measures all engines, networks and batches of one number of ranks, one after the other; the root writes the
steps' times to the file that the job names.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mpitrain.bench.baselines import DistributedLoop, SingleLoop
from mpitrain.bench.collectives import ExchangeLoop
from mpitrain.bench.step_cases import FEATURES, step_network_of
from mpitrain.comm.ranks import Ranks
from mpitrain.comm.start import run_on_all_ranks
from mpitrain.comm.tensors import open_tensors
from mpitrain.config import RunConfig, load_run_config
from mpitrain.data.dataset.exchange import take_share
from mpitrain.data.samples import Samples
from mpitrain.errors import MpitrainError
from mpitrain.runs.prepare import prepare_on_samples

_FEWEST_STEPS = 3
_LEARNING_RATE = 1e-3
_LOOPS: Mapping[str, type[DistributedLoop | SingleLoop]] = {
    "distributed loop": DistributedLoop,
    "single loop": SingleLoop,
}


class Timed(Protocol):
    """Something that trains and tells the time of each step."""

    def time_steps(self, num_steps: int) -> list[float]:
        """Train `num_steps` steps and return the time of each in microseconds. Collective."""

    def close(self) -> None:
        """Give back what it holds that is not memory of its own. Collective."""


def main() -> int:
    """Measure the cases of the file that the command line names; return the exit code."""
    job = json.loads(Path(sys.argv[1]).read_text())
    return run_on_all_ranks(lambda ranks: _measure_all(ranks, job))


def _measure_all(ranks: Ranks, job: Mapping[str, Any]) -> int:
    results: list[dict[str, Any]] = [
        {"error": f"the ranks are on {ranks.num_nodes} node(s): only MPICH lets those of one machine believe in others"}
        if ranks.num_nodes != job["nodes"]
        else _measure_or_tell(ranks, case, float(job["longest_s"]))
        for case in job["cases"]
    ]
    if ranks.is_root:
        # A file: launchers have been seen to lose the end of a line of hundreds of kilobytes.
        Path(job["results"]).write_text(json.dumps(results))
    return 0


def _measure_or_tell(ranks: Ranks, case: Mapping[str, Any], longest_s: float) -> dict[str, Any]:
    """Return the times of one case, or what is in its way: raised on all ranks together. Collective."""
    try:
        config = ranks.on_all_ranks(lambda: load_run_config(None, case["settings"]).config)
    except MpitrainError as error:
        return {"error": str(error)}
    with open_tensors(ranks, config):
        # An error inside must not pass the end of the block, which closes the group only where all went well.
        try:
            return {"step_us": _measure(ranks, config, case, longest_s)}
        except MpitrainError as error:
            return {"error": str(error)}
        finally:
            # DistributedDataParallel must be gone before its group: were it the last to hold it, it would wait, with
            # Python's lock in its hand, for a thread that waits for that lock.
            gc.collect()


def _measure(ranks: Ranks, config: RunConfig, case: Mapping[str, Any], longest_s: float) -> list[float]:
    network = step_network_of(case["network"])
    samples = synthetic_samples(case["samples"], network.sample_shape)
    timed: Timed
    if case["kind"] in _LOOPS:
        timed = _LOOPS[case["kind"]](ranks, network, samples, case["batch"])
    else:
        engine = prepare_on_samples(config, take_share(samples, ranks), ranks).engine
        timed = ExchangeLoop(engine, ranks) if case["kind"] == "exchange" else EngineLoop(engine, ranks)
    warmup_us = timed.time_steps(case["warmup"])
    ranks.barrier()
    num_steps = ranks.on_root(lambda: affordable_steps(case["steps"], warmup_us, longest_s))
    step_us = timed.time_steps(num_steps)
    ranks.barrier()
    timed.close()
    return step_us


def affordable_steps(num_steps: int, warmup_us: list[float], longest_s: float) -> int:
    """Return how many of `num_steps` fit into `longest_s` seconds, at least three."""
    fitting = int(longest_s * 1e6 / float(np.median(warmup_us)))
    return max(min(num_steps, fitting), min(num_steps, _FEWEST_STEPS))


class EngineLoop:
    """Our step engine, as the trainer calls it: as many steps at once as it takes, which then share the call's time.

    What is done once an epoch is not part of it.
    """

    def __init__(self, engine: Any, ranks: Ranks) -> None:
        self._engine, self._ranks = engine, ranks
        self._epoch, self._next_step = 0, 0
        engine.start_epoch(0)

    def time_steps(self, num_steps: int) -> list[float]:
        """See `Timed.time_steps`."""
        times_us: list[float] = []
        while len(times_us) < num_steps:
            self._turn_epoch()
            most = min(num_steps - len(times_us), self._engine.steps_per_epoch - self._next_step)
            start_s = time.perf_counter()
            taken = self._engine.take_steps(self._next_step, most, _LEARNING_RATE, False)
            call_us, num_taken = (time.perf_counter() - start_s) * 1e6, len(taken.losses)
            times_us += [call_us / num_taken] * num_taken
            self._next_step += num_taken
        return times_us

    def close(self) -> None:
        """Give back the memory that the ranks share. Collective."""
        self._engine.close()

    def _turn_epoch(self) -> None:
        if self._next_step == self._engine.steps_per_epoch:
            self._epoch, self._next_step = self._epoch + 1, 0
            self._engine.start_epoch(self._epoch)
            self._ranks.barrier()  # else the first step would wait for the last rank to be ready


def synthetic_samples(num_samples: int, sample_shape: tuple[int, ...] = (FEATURES,)) -> Samples:
    """Return samples whose target is a sigmoid of the inputs' sum, at each point of a field, the same on all ranks."""
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((num_samples, *sample_shape), dtype=np.float32)
    targets = 1 / (1 + np.exp(-inputs.sum(axis=1, keepdims=True)))
    names = tuple(f"x{feature}" for feature in range(FEATURES))
    return Samples(inputs, targets.astype(np.float32), np.arange(num_samples), names)


if __name__ == "__main__":
    sys.exit(main())
