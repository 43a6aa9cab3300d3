"""Trains three times with a delay planted on rank 1: in computing, in reading, in its message; run under mpirun.

Arguments: data file, folder, milliseconds. What is slow is patched here; the package knows nothing of it.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mpitrain.comm.ranks import Ranks
from mpitrain.comm.start import run_on_all_ranks
from mpitrain.data.dataset.batches import VirtualRankBatches
from mpitrain.runs.beginning import TrainRequest
from mpitrain.runs.train_run import train
from mpitrain.train.compiled import build

DATA, FOLDER, DELAY_MS = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
# The kernel's function that sleeps, wherever its sources define it.
LINES = {"computing": "void write_partials(", "communicating": "SumResult add_among_ranks("}


@contextmanager
def delayed_kernel(where: str) -> Iterator[None]:
    """Build the kernel from a copy in which the function `LINES[where]` names sleeps, after its clock has started."""
    own, copy = build._KERNELS, FOLDER / f"kernels-{where}"
    shutil.copytree(own, copy)
    sources = [path for path in copy.glob("*.[ch]pp") if f"\n{LINES[where]}" in path.read_text()]
    if len(sources) != 1:
        raise SystemExit(
            f"planted_delays.py: `{LINES[where]}` begins a line of {len(sources)} kernel sources, not of one"
        )
    (source,) = sources
    text = source.read_text()
    start = text.index("{\n", text.index(LINES[where])) + 2
    if where == "communicating":
        start = text.index("write_rows(own", start)  # behind the look at the clock
    sleep = f"const timespec planted{{0, {DELAY_MS} * 1000000}}; nanosleep(&planted, nullptr);\n"
    source.write_text(f"{text[:start]}{sleep}{text[start:]}")
    build._KERNELS = copy
    try:
        yield
    finally:
        build._KERNELS = own


@contextmanager
def delayed_slices() -> Iterator[None]:
    """Let each fetch of a microbatch take longer: two a step on this rank, of four virtual ranks."""
    own = VirtualRankBatches.microbatch

    def slow(self: Any, step: int) -> Any:
        time.sleep(DELAY_MS / 2e3)
        return own(self, step)

    VirtualRankBatches.microbatch = slow  # type: ignore[method-assign]
    try:
        yield
    finally:
        VirtualRankBatches.microbatch = own  # type: ignore[method-assign]


@contextmanager
def nothing() -> Iterator[None]:
    yield


def body(ranks: Ranks) -> int:
    plants = {
        "computing": lambda: delayed_kernel("computing"),
        "communicating": lambda: delayed_kernel("communicating"),
        "reading": delayed_slices,
    }
    for where, plant in plants.items():
        engine = "eager" if where == "reading" else "compiled"
        settings = (
            f"data.data_path={DATA}", f"output.model_dir={FOLDER / where}", f"training.engine={engine}",
            "training.epochs=2", "training.virtual_ranks=4", "data.max_patterns=1400",
        )  # fmt: skip
        with plant() if ranks.rank == 1 else nothing():
            train(ranks, TrainRequest(overrides=settings))
    return 0


if __name__ == "__main__":
    sys.exit(run_on_all_ranks(body))
