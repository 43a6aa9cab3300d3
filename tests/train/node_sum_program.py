"""Run by test_train_node_sum.py under mpirun: `python node_sum_program.py RESULTS`.

On two cores at most, whatever the machine has, trains a few epochs with the compiled engine, in several ways, and
writes what was seen on each rank to RESULTS/facts.json: {way: [rank 0's, rank 1's, ...]}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

from played_runs import COMMON, MLP, RATE, points

from mpitrain.comm.mpi import node_shared
from mpitrain.comm.start import run_on_all_ranks
from mpitrain.comm.tensors import open_tensors
from mpitrain.config import load_run_config
from mpitrain.data.dataset.exchange import take_share
from mpitrain.errors import LaunchError
from mpitrain.runs.prepare import prepare_on_samples
from mpitrain.train.checkpoint.format import weights_sha256
from mpitrain.train.compiled import node_sum
from mpitrain.train.optimizers.state import optimizer_tensors
from mpitrain.train.state import named_weights

SETTINGS = (*MLP, "training.engine=compiled")
LATE_S = 1.0
# So many parameters that the ranks add and update them by shares, with all that is kept besides them.
WIDE = ("model.hidden_size=200", "training.average.decay=0.9")
VARIANTS = {
    " clipped": ("training.gradient_clip_norm=0.01",),
    " descent": ("training.optimizer.type=sgd",),
    " dropped out": ("model.dropout=0.2", "model.residual=true"),
    " batch norm": ("model.batch_norm=true",),
    " float64": ("training.dtype=float64",),
}


class Run:
    """The compiled engine on this session's ranks."""

    def __init__(self, ranks, *settings):
        self.config = load_run_config(None, [*COMMON, "data.validation_split=0.1", *SETTINGS, *settings]).config
        samples = take_share(points(331), ranks)
        self.parts = prepare_on_samples(self.config, samples, ranks)
        self.engine = self.parts.engine

    def epochs(self, count=3, most=100):
        """Train whole epochs, up to `most` steps a call; return what the rank has seen of them."""
        losses, calls, ends = [], 0, []
        for epoch in range(count):
            self.engine.start_epoch(epoch)
            step = 0
            while step < self.engine.steps_per_epoch:
                taken = self.engine.take_steps(step, min(most, self.engine.steps_per_epoch - step), RATE, False)
                step, calls = step + len(taken.losses), calls + 1
                losses += taken.losses
            ends.append((self.engine.epoch_loss(), self.engine.validation_loss()))
        return {**self.facts(), "losses": losses, "ends": ends, "calls": calls}

    def facts(self):
        names = [name for name, _ in self.parts.model.named_parameters()]
        seen = {
            "shares": self.engine._node_sum is not None,
            "by_shares": bool(self.engine._kernel.adds_by_shares()),
            "weights": weights_sha256(named_weights(self.parts.model)),
            "optimizer": weights_sha256(optimizer_tensors(self.engine.optimizer, names)),
            "average": weights_sha256(self.engine.average.tensors()) if self.engine.average is not None else None,
        }
        self.engine.close()
        return seen


@contextmanager
def no_shared_memory():
    """As on a node whose /dev/shm has no more room."""
    with mock.patch.object(node_shared, "_check_room", side_effect=LaunchError("full")):
        yield


@contextmanager
def room_for_two_buffers(missing_bytes=0):
    """As if the largest shared memory were two buffers of the rows, less so many bytes."""
    fits = node_sum._fits

    def just(kernel, num_rows, num_in_memory, _largest):
        return fits(kernel, num_rows, num_in_memory, kernel.shared_bytes(2 * num_rows) - missing_bytes)

    with mock.patch.object(node_sum, "_fits", just):
        yield


def stopped(ranks, asking_rank, *settings):
    """Ask on one rank before the second call of three steps."""
    run = Run(ranks, *settings)
    run.engine.start_epoch(0)
    calls = [run.engine.take_steps(0, 3, RATE, False)]
    calls.append(run.engine.take_steps(3, 3, RATE, ranks.rank == asking_rank))
    return {**run.facts(), "calls": [(len(taken.losses), taken.stop_requested) for taken in calls]}


def waiting(ranks, late_rank):
    """One rank comes late to a step: what processor time do the others take until it is there?"""
    run = Run(ranks)
    run.engine.start_epoch(0)
    ranks.barrier()
    is_late = ranks.rank == late_rank
    if is_late:
        time.sleep(LATE_S)
    started_s, cpu_started_s = time.monotonic(), time.process_time()
    run.engine.take_steps(0, 1, RATE, False)
    seen = {"is_late": is_late, "wall_s": time.monotonic() - started_s, "cpu_s": time.process_time() - cpu_started_s}
    run.engine.close()
    return seen


def damaged(ranks, *settings):
    """The first rank flips a bit of the last one's row, once all others wait for it: what does each rank say?"""
    run = Run(ranks, *settings)
    run.engine.start_epoch(0)
    before = weights_sha256(named_weights(run.parts.model))
    if ranks.is_root and ranks.world_size > 1:
        memory, num_rows = run.engine._node_sum._memory.array, run.engine._node_sum._description.num_rows
        num_arrived = memory[:4].view("u4")
        while num_arrived[0] < ranks.world_size - 1:
            time.sleep(0.001)
        row_bytes = (len(memory) - 256) // (num_rows + 2 if settings else 2 * num_rows)
        memory[192 + (num_rows - 1) * row_bytes + 3] ^= 1
    try:
        run.engine.take_steps(0, 1, RATE, False)
    except LaunchError as error:
        seen = {"said": str(error), "is_unchanged": weights_sha256(named_weights(run.parts.model)) == before}
    else:
        seen = {"said": "", "is_unchanged": False}
    run.engine.close()
    return seen


def noting_in(facts, ranks):
    """What notes under a name what each rank sees, with tensors open for a reduction."""

    def note(name, see, reduction="fixed"):
        config = load_run_config(None, [f"training.reduction={reduction}"]).config
        with open_tensors(ranks, config.semantics, config.compute, config.training, config.distributed.timeout_s):
            facts[name] = ranks.gather_object(see(ranks))

    return note


def body(ranks):
    facts = {}
    note = noting_in(facts, ranks)
    last = ranks.world_size - 1
    note("fixed", lambda ranks: Run(ranks).epochs())
    note("fixed, one by one", lambda ranks: Run(ranks).epochs(most=1))
    note("any", lambda ranks: Run(ranks, "training.reduction=any").epochs(), "any")
    with no_shared_memory():
        note("no room", lambda ranks: Run(ranks).epochs())
    with room_for_two_buffers():
        note("two buffers", lambda ranks: Run(ranks).epochs())
    with room_for_two_buffers(missing_bytes=1):
        note("less than two buffers", lambda ranks: Run(ranks).epochs())
    note("stopped", lambda ranks: stopped(ranks, last))
    note("waiting", lambda ranks: waiting(ranks, last))
    note("damaged", damaged)
    for name, more in VARIANTS.items():
        note(f"wide{name}", lambda ranks, more=more: Run(ranks, *WIDE, *more).epochs(count=2))
    note("wide stopped", lambda ranks: stopped(ranks, last, *WIDE))
    note("wide", lambda ranks: Run(ranks, *WIDE).epochs(count=2))
    note("wide, one by one", lambda ranks: Run(ranks, *WIDE).epochs(count=2, most=1))
    note("wide, profiled", lambda ranks: Run(ranks, *WIDE, "training.profile_training=true").epochs(count=2, most=1))
    note("wide, damaged", lambda ranks: damaged(ranks, *WIDE))
    if ranks.is_root:
        (Path(sys.argv[1]) / "facts.json").write_text(json.dumps(facts))
    return 0


if __name__ == "__main__":
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    raise SystemExit(run_on_all_ranks(body))
