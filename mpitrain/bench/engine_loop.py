"""Times of the package's step engines, called as the trainer calls them, and the parts of a step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

from mpitrain.comm import Ranks
from mpitrain.models.batch_norm import moment_length
from mpitrain.models.dense_module import torch_view
from mpitrain.observe.step_times import KINDS, RankTimes, timing_of
from mpitrain.runs.prepare import PreparedRun
from mpitrain.train.engines.standard import EXTRA_ENTRIES

_LEARNING_RATE = 1e-3


class EngineLoop:
    """Loop over the engine's steps; the time of a call that takes several steps is divided equally among them.

    Work that is done once per epoch is excluded.
    """

    def __init__(self, prepared: PreparedRun, ranks: Ranks) -> None:
        self._prepared, self._engine, self._ranks = prepared, prepared.engine, ranks
        self._epoch, self._next_step = 0, 0
        self._times = RankTimes()
        self._engine.start_epoch(0)

    def time_steps(self, num_steps: int) -> list[float]:
        """Train `num_steps` steps and return the time of each in microseconds. Collective.

        `spent` then returns the parts of these steps' time.
        """
        times_us: list[float] = []
        start = self._now(0)
        while len(times_us) < num_steps:
            start = self._turn_epoch(start)
            most = min(num_steps - len(times_us), self._engine.steps_per_epoch - self._next_step)
            start_s = time.perf_counter()
            taken = self._engine.take_steps(self._next_step, most, _LEARNING_RATE, False)
            call_s, num_taken = time.perf_counter() - start_s, len(taken.losses)
            times_us += [call_s * 1e6 / num_taken] * num_taken
            self._next_step += num_taken
        self._times = self._now(num_steps).since(start)
        return times_us

    def spent(self) -> Mapping[str, float]:
        """Return the parts of the time of the last `time_steps`, the same on all ranks. Collective.

        Fractions of a step, 0 to 1, mean over the ranks: computing, reading, communicating (messages, and additions in
        a node's shared memory), waiting for later ranks. `adding_us`: microseconds per step of those additions.
        """
        ranks = self._ranks
        gathered = ranks.gather_object((astuple(self._times), ranks.host, ranks.node_rank))
        spent = [RankTimes(*times) for times, _, _ in gathered]
        none = [None] * len(spent)
        hosts, nodes = [host for _, host, _ in gathered], [node for _, _, node in gathered]
        timing = timing_of(spent, self._engine.global_batch_size, [0.0] * len(spent), none, hosts, nodes)
        shares = {kind: timing.share(kind) for kind in (*KINDS, "waiting")}
        adding_s = statistics.fmean(one.adding for one in spent) / max(spent[0].steps, 1)
        return {**shares, "adding_us": adding_s * 1e6}

    def facts(self) -> dict[str, Any]:
        """Return facts that are equal on all ranks: engine, number of nodes, bytes of each rank's term in the sums."""
        model = torch_view(self._prepared.model)
        trained = [weights for weights in model.parameters() if weights.requires_grad]
        row_length = sum(weights.numel() for weights in trained) + moment_length(model) + EXTRA_ENTRIES
        return {
            "engine": self._prepared.choice.name,
            "nodes": self._ranks.num_nodes,
            "row_bytes": row_length * trained[0].element_size(),
        }

    def close(self) -> None:
        """Free the memory that the ranks share. Collective."""
        self._engine.close()

    def _now(self, num_steps: int) -> RankTimes:
        return RankTimes.now(self._ranks, self._engine.spent(), num_steps)

    def _turn_epoch(self, start: RankTimes) -> RankTimes:
        """Begin the next epoch if the last one has ended; return `start` plus the time that this took."""
        if self._next_step < self._engine.steps_per_epoch:
            return start
        before = self._now(0)
        self._epoch, self._next_step = self._epoch + 1, 0
        self._engine.start_epoch(self._epoch)
        self._ranks.barrier()  # otherwise the first step would include waiting for the slowest rank
        return start.plus(self._now(0).since(before))
