"""How fast samples reach a consumer that does nothing with them, against netCDF4 reading the same files in order.

    python tests/data/reading_rates.py [FOLDER]

Every point is a sample of eight variables; blocks of one time level. Rounds of all ways alternate, medians are shown:
`samples`: chunks of samples, in the order of the files, one thread; `two threads`: the same with `ReadAhead`'s threads;
`batches`: an epoch of shuffled batches, as a training gets them. netCDF4 masks and scales, as by default; one core
each, two for `two threads`. CPU time counts all threads together: a rate by it is one core's.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PROJECT = Path(__file__).resolve().parents[2]
NAMES = tuple(f"v{number}" for number in range(8))
STORAGE = {
    "uncompressed": {},
    "deflate 1": {"compression": "zlib", "complevel": 1, "shuffle": True},
    "deflate 4": {"compression": "zlib", "complevel": 4, "shuffle": True},
}
SHAPE, FILES = (96, 360, 720), 1
# By the clock, and of the CPU in all threads.
Seconds = tuple[float, float]
GIGABYTES = FILES * len(NAMES) * np.prod(SHAPE) * 4 / 1e9


def write_files(folder: Path, storage: dict, shape: tuple[int, ...] = SHAPE) -> Path:
    """Write waves with noise on them, as measured or computed fields have it, and return their folder."""
    import netCDF4

    folder.mkdir(parents=True)
    noise = np.random.default_rng(1)
    waves = np.add.outer(np.sin(np.linspace(0, 6, shape[1])), np.cos(np.linspace(0, 9, shape[2])))
    blocks = {"chunksizes": (1, *shape[1:])} if storage else {}
    for number in range(FILES):
        with netCDF4.Dataset(str(folder / f"f{number}.nc"), "w") as file:
            for name, size in zip(("time", "nj", "ni"), shape, strict=True):
                file.createDimension(name, size)
            for place, name in enumerate(NAMES):
                variable = file.createVariable(name, "f4", ("time", "nj", "ni"), fill_value=1e30, **blocks, **storage)
                variable[:] = np.float32(10 * place + waves + 1e-3 * noise.standard_normal(shape))
    return folder


def now() -> Seconds:
    return time.perf_counter(), time.process_time()


def since(started: Seconds) -> Seconds:
    return time.perf_counter() - started[0], time.process_time() - started[1]


def config_of_all(folder: Path):
    from mpitrain.config import load_run_config

    names = f"variables.input_variables=[{','.join(NAMES[:-1])}]", f"variables.output_variables=[{NAMES[-1]}]"
    settings = ["domain.mask_mode=all", "data.streaming=true", "training.validation_split=0", *names]
    return load_run_config(None, [f"data.data_path={folder}/*.nc", *settings]).config


def read_by_netcdf4(folder: Path) -> Seconds:
    import netCDF4

    started = now()
    for path in sorted(folder.glob("*.nc")):
        with netCDF4.Dataset(str(path)) as file:
            for level in range(file.dimensions["time"].size):
                for name in NAMES:
                    file[name][level]
    return since(started)


def read_samples(folder: Path, num_threads: int) -> Seconds:
    from mpitrain.data.selection.opening import open_source
    from mpitrain.data.selection.settings import selection_of
    from mpitrain.data.streaming.read_ahead import ReadAhead

    source, count = open_source(selection_of(config_of_all(folder))), 0
    started = now()
    if num_threads == 1:
        for chunk in source.chunks:
            count += len(source.read(chunk))
    else:
        reader = ReadAhead(source, lambda own, number: own.read(own.chunks[number]), num_threads)
        for samples in reader.in_order(range(len(source.chunks)), 2 * num_threads):
            count += len(samples)
        reader.close()
    source.close()  # an open file keeps its blocks, for netCDF4 too
    assert count == FILES * source.grid_shape[0] * source.grid_shape[1] * source.files[0].num_times
    return since(started)


def read_batches(folder: Path) -> Seconds:
    """One epoch in batches of 16,384 on 8 virtual ranks, after the first pass over the files."""
    from played_ranks import on_played_ranks, played_ranks_of

    from mpitrain.comm.virtual_ranks import VirtualRanks
    from mpitrain.data.dataset.batches import plan_batches
    from mpitrain.data.dataset.exchange import open_source_on_root
    from mpitrain.data.selection.settings import selection_of
    from mpitrain.data.streaming.dataset import in_enough_chunks, open_streamed

    config = config_of_all(folder)

    def body(communicator):
        ranks, virtual_ranks = played_ranks_of(communicator), VirtualRanks(8, 1, 0)
        source = in_enough_chunks(open_source_on_root(selection_of(config), ranks), virtual_ranks.num_streams, ranks)
        data = open_streamed(source, ranks, virtual_ranks, config.split_data, "float32")
        plan = plan_batches(data.summary.num_training_samples, 16384, 8, data.summary.largest_share)
        sources = data.microbatches(plan, 0, True)
        started = now()
        for step in range(plan.steps_per_epoch):
            for one in sources:
                one.microbatch(step)
        return since(started)

    return on_played_ranks(1, body)[0]


def on_cores(count: int, measure: Callable[[], Seconds]) -> Seconds:
    """Measure on the first `count` cores alone."""
    allowed = os.sched_getaffinity(0)
    _allow(sorted(allowed)[:count])
    try:
        return measure()
    finally:
        _allow(allowed)


def _allow(cores: Iterable[int]) -> None:
    for task in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # a thread that has ended
            os.sched_setaffinity(int(task), cores)


@dataclass(frozen=True)
class Rate:
    """GB/s of 32-bit numbers: by the clock, and by the CPU time of all threads, which other work does not change."""

    by_clock: float
    by_cpu: float


def measure_rates(folder: Path, rounds: int, with_batches: bool = True) -> dict[str, Rate]:
    """Return the median of `rounds` of each way, after one round that is not counted."""
    ways: dict[str, Callable[[], Seconds]] = {
        "netCDF4": lambda: on_cores(1, lambda: read_by_netcdf4(folder)),
        "samples": lambda: on_cores(1, lambda: read_samples(folder, 1)),
        "two threads": lambda: on_cores(2, lambda: read_samples(folder, 2)),
    }
    if with_batches:
        ways["batches"] = lambda: on_cores(1, lambda: read_batches(folder))
    times: dict[str, list[Seconds]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            found = way()
            if turn:
                times[name].append(found)
    return {
        name: Rate(*(float(GIGABYTES / statistics.median(one)) for one in zip(*found, strict=True)))
        for name, found in times.items()
    }


def gain_of_two_threads(folder: Path, rounds: int) -> float:
    """Return the median over `rounds` of one thread's time over that of two just after it, by the clock."""
    ratios = []
    for _ in range(rounds):
        one, two = (on_cores(count, lambda: read_samples(folder, count))[0] for count in (1, 2))  # noqa: B023
        ratios.append(one / two)
    return statistics.median(ratios)


def read_as_a_run() -> None:
    """Do as a run does; let the compiled part be there from the first byte on, as it is after some files."""
    from mpitrain.cluster.cpu.freed_memory import keep_freed_memory
    from mpitrain.data.files.compiled import build

    keep_freed_memory({})
    build.WORTH_BUILDING_BYTES = 0


def main(folder: Path) -> None:
    read_as_a_run()
    for name, storage in STORAGE.items():
        rates = measure_rates(write_files(folder / name.replace(" ", "_"), storage), rounds=3)
        for kind in ("by_clock", "by_cpu"):
            found = {way: getattr(rate, kind) for way, rate in rates.items()}
            shown = (f"{way} {rate:.3f} ({rate / found['netCDF4']:.2f}x)" for way, rate in found.items())
            print(f"{name}, {kind}: {', '.join(shown)} GB/s", flush=True)


if __name__ == "__main__":
    sys.path[:0] = [str(PROJECT), str(PROJECT / "tests"), str(PROJECT / "tests" / "train")]
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
