"""The Python program of `mpitrain bench step`, started under mpirun: `python -m mpitrain.bench.step_job JOB.json`.

One launch measures all engines, networks and batch sizes for one number of ranks, one after the other; the root writes
the step times to the file given in the job.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mpitrain.bench.baselines import CompiledLoop, DistributedLoop, SingleLoop
from mpitrain.bench.collectives import ExchangeLoop
from mpitrain.bench.engine_loop import EngineLoop
from mpitrain.bench.jax_scan import JaxScan
from mpitrain.bench.step_cases import FEATURES, OUTPUTS, Engine, Network, StepCase
from mpitrain.comm import Ranks, open_tensors, run_on_all_ranks
from mpitrain.config import RunConfig, load_run_config
from mpitrain.data import CICE_TARGET, Samples
from mpitrain.data.dataset.exchange import take_share
from mpitrain.errors import MpitrainError
from mpitrain.runs.prepare import prepare_on_samples

_FEWEST_STEPS, _FIRST_STEPS = 3, 2
_WARM_UP_SHARE = 0.5  # of a round's longest time
_LOOPS: Mapping[str, type[DistributedLoop | SingleLoop | CompiledLoop | JaxScan]] = {
    "ddp-loop": DistributedLoop,
    "torch-loop": SingleLoop,
    "torch-compile": CompiledLoop,
    "jax-scan": JaxScan,
}


class Timed(Protocol):
    """Protocol of a training loop with timed steps."""

    def time_steps(self, num_steps: int) -> list[float]:
        """Train `num_steps` steps and return the time of each in microseconds. Collective."""


def main() -> int:
    """Measure the cases of the job file given on the command line; return the exit code."""
    job = json.loads(Path(sys.argv[1]).read_text())
    return run_on_all_ranks(lambda ranks: _measure_all(ranks, job))


def _measure_all(ranks: Ranks, job: Mapping[str, Any]) -> int:
    results: list[dict[str, Any]] = [
        {"error": f"the ranks are on {ranks.num_nodes} node(s): only MPICH can simulate several nodes on one machine"}
        if job["nodes"] not in (None, ranks.num_nodes)
        else _measure_or_tell(ranks, case_of(record), float(job["longest_s"]))
        for record in job["cases"]
    ]
    if ranks.is_root:
        # A file instead of standard output: launchers may lose the end of a line of hundreds of kilobytes.
        Path(job["results"]).write_text(json.dumps(results))
    return 0


def case_of(record: Mapping[str, Any]) -> StepCase:
    """Return the case from its JSON record, in which tuples became lists."""
    network, engine = Network(**record["network"]), Engine(**record["engine"])
    return StepCase(**{**record, "network": network, "engine": engine})


def _measure_or_tell(ranks: Ranks, case: StepCase, longest_s: float) -> dict[str, Any]:
    """Return the times of one case, or its error, which must occur on all ranks. Collective."""
    try:
        path = Path(case.network.config) if case.network.config else None
        config = ranks.on_all_ranks(lambda: load_run_config(path, case.settings).config)
    except MpitrainError as error:
        return {"error": str(error)}
    with open_tensors(ranks, config.semantics, config.compute, config.training, config.distributed.timeout_s):
        # Catch errors inside the block: at its end the process group is closed only if no exception passes.
        try:
            return _measure(ranks, config, case, longest_s)
        except MpitrainError as error:
            return {"error": str(error)}
        finally:
            # DistributedDataParallel must be freed before its process group: if it held the last reference, its
            # destructor would hold Python's lock (GIL) and wait for a thread that needs this lock.
            gc.collect()


def _measure(ranks: Ranks, config: RunConfig, case: StepCase, longest_s: float) -> dict[str, Any]:
    network, kind = case.network, case.engine.kind
    names = tuple(network.input_names), tuple(network.target_names)
    samples = synthetic_samples(case.num_samples, tuple(network.sample_shape), *names)
    timed: Timed
    if case.engine.name in _LOOPS:
        timed = _LOOPS[case.engine.name](ranks, network, samples, case.global_batch_size)
    else:
        prepared = prepare_on_samples(config, take_share(samples, ranks), ranks)
        timed = ExchangeLoop(prepared.engine, ranks) if kind == "exchange" else EngineLoop(prepared, ranks)
    warmup_us = _warm_up(timed, ranks, case.num_warmup_steps, longest_s * _WARM_UP_SHARE)
    num_steps = ranks.on_root(lambda: affordable_steps(case.num_steps, warmup_us, longest_s))
    step_us = timed.time_steps(num_steps)
    ranks.barrier()
    if not isinstance(timed, EngineLoop):
        return {"step_us": step_us}
    of_engine = {"spent": timed.spent(), "facts": timed.facts()}
    timed.close()
    return {"step_us": step_us, **of_engine}


def _warm_up(timed: Timed, ranks: Ranks, num_steps: int, longest_s: float) -> list[float]:
    """Take warm-up steps for at most about `longest_s` seconds; return their times in microseconds.

    The first steps, which compile and allocate, are excluded if there are later ones.
    """
    first_us = timed.time_steps(min(num_steps, _FIRST_STEPS))
    left = num_steps - len(first_us)
    more_us = []
    if left:
        more_us = timed.time_steps(ranks.on_root(lambda: affordable_steps(left, first_us[-1:], longest_s)))
    ranks.barrier()
    return more_us or first_us


def affordable_steps(num_steps: int, warmup_us: list[float], longest_s: float) -> int:
    """Return how many of `num_steps` steps fit into `longest_s` seconds, but at least three of them."""
    fitting = int(longest_s * 1e6 / float(np.median(warmup_us)))
    return max(min(num_steps, fitting), min(num_steps, _FEWEST_STEPS))


def synthetic_samples(
    num_samples: int, sample_shape: tuple[int, ...] = (FEATURES,), input_names: tuple[str, ...] = (),
    target_names: tuple[str, ...] = (),
) -> Samples:  # fmt: skip
    """Return samples, equal on all ranks, with targets sigmoid(sum of the inputs), at each point for fields.

    The default names are x0, x1, ... and one target of a CICE history.
    """
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((num_samples, *sample_shape), dtype=np.float32)
    target = 1 / (1 + np.exp(-inputs.sum(axis=1, keepdims=True)))
    targets = np.repeat(target.astype(np.float32), len(target_names) or OUTPUTS, axis=1)
    names = input_names or tuple(f"x{feature}" for feature in range(sample_shape[0]))
    return Samples(inputs, targets, np.arange(num_samples), names, target_names or (CICE_TARGET,))


if __name__ == "__main__":
    sys.exit(main())
