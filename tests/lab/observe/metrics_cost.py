"""Times the same training with and without its metrics, epoch by epoch in turn; run under mpirun.

Arguments: folder, seconds. Without: no meter, and a kernel whose clock is a constant, so that the compiler drops every
look at it. Prints the ratio of the epochs that nothing disturbed, with to without, and how far that goes by chance.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from mpitrain.bench.step_job import synthetic_samples
from mpitrain.comm.ranks import Ranks
from mpitrain.comm.start import run_on_all_ranks
from mpitrain.comm.tensors import open_tensors
from mpitrain.config import load_run_config
from mpitrain.data.dataset.exchange import take_share
from mpitrain.observe.logs import open_rank_log
from mpitrain.observe.metrics_file import MetricsFile
from mpitrain.observe.progress import LineProgress
from mpitrain.observe.step_times import StepMeter
from mpitrain.runs.prepare import prepare_on_samples
from mpitrain.train.callbacks import MeterCallback, RankWatcher, RootWatcher
from mpitrain.train.compiled import build
from mpitrain.train.stop_request import StopRequest
from mpitrain.train.trainer import Trainer

FOLDER, LONGEST_S = Path(sys.argv[1]), float(sys.argv[2])
NUM_SAMPLES, LEARNING_RATE = 128_000, 1e-3
SETTINGS = (
    "model.name=icenet", "training.engine=compiled", "training.global_batch_size=64", "data.validation_split=0",
    "training.epochs=1000000", "training.log_interval=1000000",
)  # fmt: skip
# Three of each: where the memory of one lies can make two parts in a hundred.
WAYS = ("off", "on", "on again", "off again", "off once more", "on once more")
NO_CLOCK = """
#pragma once
#include <cstdint>
inline std::uint64_t ticks() { return 0; }
inline std::uint64_t ticks_between(std::uint64_t, std::uint64_t) { return 0; }
"""


class Timed:
    """One way of training: an epoch at a time."""

    def __init__(self, ranks: Ranks, config: Any, stack: ExitStack, folder: Path, with_metrics: bool) -> None:
        prepared = prepare_on_samples(config, take_share(synthetic_samples(NUM_SAMPLES), ranks), ranks)
        engine = prepared.engine
        stack.callback(engine.close)
        meter = StepMeter(ranks, engine.spent, engine.global_batch_size) if with_metrics else None
        if ranks.is_root:
            folder.mkdir()
        ranks.barrier()
        logger = open_rank_log(folder, ranks.rank, ranks.host)
        watcher: Any = RankWatcher(logger)
        if ranks.is_root:
            progress = LineProgress(stack.enter_context((folder / "progress").open("w")), 10**9, 0)
            metrics = stack.enter_context(MetricsFile(folder / "metrics.jsonl"))
            watcher = RootWatcher(progress, metrics, logger, config.training, lambda: None, meter)
        meters = [] if meter is None else [MeterCallback(meter, config.training.epochs)]
        self._ranks, self._between_s, self._start_epoch = ranks, 0.0, engine.start_epoch
        engine.start_epoch = self._timed_start
        self._trainer = Trainer(
            config.training, ranks, prepared.model, engine, [watcher, *meters], StopRequest(),
        )  # fmt: skip

    def step_us(self) -> float:
        """Train one epoch; return microseconds a step, without what begins an epoch. Collective."""
        started_s = time.perf_counter()
        self._trainer._run_steps(LEARNING_RATE)
        elapsed_s = time.perf_counter() - started_s - self._between_s
        self._trainer._finish_epoch(LEARNING_RATE, elapsed_s)
        return elapsed_s * 1e6 * 64 / NUM_SAMPLES

    def _timed_start(self, epoch: int, first_step: int = 0) -> None:
        started_s = time.perf_counter()
        self._start_epoch(epoch, first_step)
        self._ranks.barrier()  # else the first step would wait for the last rank to be ready
        self._between_s = time.perf_counter() - started_s


def body(ranks: Ranks) -> int:
    config = load_run_config(None, SETTINGS).config
    with (
        open_tensors(ranks, config.semantics, config.compute, config.training, config.distributed.timeout_s),
        ExitStack() as stack,
    ):
        ranks.say(json.dumps(_measure(ranks, {name: make(ranks, config, stack, name) for name in WAYS})))
    return 0


def make(ranks: Ranks, config: Any, stack: ExitStack, name: str) -> Timed:
    """Return one of the ways of training. Collective."""
    own, has_metrics = build._KERNELS, name.startswith("on")
    if not has_metrics:
        build._KERNELS = FOLDER / f"kernels-{name}-{ranks.rank}"
        shutil.copytree(own, build._KERNELS)
        (build._KERNELS / "clock.hpp").write_text(NO_CLOCK)
    try:
        return Timed(ranks, config, stack, FOLDER / name, has_metrics)
    finally:
        build._KERNELS = own


def _measure(ranks: Ranks, ways: dict[str, Timed]) -> dict[str, Any]:
    """Return the times of rounds in turn, for so many seconds. Collective."""
    names = list(ways)
    times: dict[str, list[float]] = {name: [] for name in names}
    for way in ways.values():
        way.step_us()
    started_s = time.monotonic()
    while ranks.broadcast_object(time.monotonic() - started_s < LONGEST_S):
        names = [*names[1:], names[0]]  # which goes first changes each round
        for name in names:
            times[name].append(ways[name].step_us())
    # The fastest tenth: epochs that no other program on the machine disturbed, of milliseconds each.
    fastest = {name: statistics.quantiles(values, n=10)[0] for name, values in times.items()}
    of = {way: [time_us for name, time_us in fastest.items() if name.startswith(way)] for way in ("on", "off")}
    return {
        "rounds": len(times["off"]),
        "fastest_us": fastest,
        "ratio": sum(of["on"]) / sum(of["off"]),
        # Of three, the range is 1.7 standard deviations; the ratio of two means of three has 0.8.
        "chance": (max(of["off"]) / min(of["off"]) - 1) / 2,
    }


if __name__ == "__main__":
    sys.exit(run_on_all_ranks(body))
