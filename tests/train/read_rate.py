"""How fast batches come from files, and what memory that takes."""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from pathlib import Path

# (files, times a file): of 360 x 720 points and eight variables of 4 bytes, 8.3 MB a time.
SMALL, BIG = (2, 6), (20, 24)


def write_set(folder: Path, size: tuple[int, int]) -> Path:
    """Write synthetic histories, stored in compressed blocks, and return their folder."""
    from mpitrain.synthetic.history import Storage, write_synthetic_histories

    paths = [folder / f"h_{number:02d}.nc" for number in range(size[0])]
    storage = Storage((1, 180, 720), 1)
    for _ in write_synthetic_histories(
        paths, seed=1, num_latitudes=360, num_longitudes=720, num_times=size[1], storage=storage
    ):
        pass
    return folder


def train_and_weigh() -> None:
    """Train as the command line says, and print the most memory that this rank has had."""
    from mpitrain.cli.main import main

    code = main(["train", *sys.argv[1:]])
    print(f"resident {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000} MB", flush=True)
    raise SystemExit(code)


def measure_reading(folder: Path) -> tuple[float, float, Counter]:
    """Seconds of netCDF4 for all values of all variables in order, of one epoch handed to nobody, and its reads."""
    from field_files import counted_reads
    from played_ranks import on_played_ranks, played_ranks_of

    from mpitrain.comm.virtual_ranks import VirtualRanks
    from mpitrain.config import load_run_config
    from mpitrain.data.dataset.batches import plan_batches
    from mpitrain.data.dataset.exchange import open_source_on_root
    from mpitrain.data.selection.settings import selection_of
    from mpitrain.data.streaming.dataset import in_enough_chunks, open_streamed

    config = load_run_config(None, [f"data.data_path={folder}/*.nc", "data.streaming=true"]).config

    def body(communicator):
        ranks, virtual_ranks = played_ranks_of(communicator), VirtualRanks(8, 1, 0)
        source = in_enough_chunks(open_source_on_root(selection_of(config), ranks), virtual_ranks.num_streams, ranks)
        data = open_streamed(source, ranks, virtual_ranks, config.split_data, "float32")
        plan = plan_batches(data.summary.num_training_samples, 16384, 8, data.summary.largest_share)
        sources = data.microbatches(plan, 0, True)
        started = time.perf_counter()
        with counted_reads() as reads:
            for step in range(plan.steps_per_epoch):
                for source in sources:
                    source.microbatch(step)
        return time.perf_counter() - started, reads

    streamed_s, reads = on_played_ranks(1, body)[0]
    return _read_in_order(folder), streamed_s, reads


def measure_training(folder: Path) -> tuple[float, float]:
    """Seconds of an epoch's batches from files, handed to nobody, and of the same epoch trained on."""
    from played_ranks import on_played_ranks, played_ranks_of

    from mpitrain.config import load_run_config
    from mpitrain.data.dataset.exchange import open_source_on_root
    from mpitrain.data.selection.settings import selection_of
    from mpitrain.runs.prepare import prepare

    settings = [f"data.data_path={folder}/*.nc", "data.streaming=true", "training.global_batch_size=4096"]
    config = load_run_config(None, settings).config

    def body(communicator):
        ranks = played_ranks_of(communicator)
        engine = prepare(config, open_source_on_root(selection_of(config), ranks), ranks, None).engine
        times_s = []
        for run_step in (engine.microbatches, lambda step: engine.take_steps(step, 1, 1e-3, False)):
            started = time.perf_counter()
            engine.start_epoch(0)
            for step in range(engine.steps_per_epoch):
                run_step(step)
            times_s.append(time.perf_counter() - started)
        return tuple(times_s)

    reading_s, training_s = on_played_ranks(1, body)[0]
    return reading_s, training_s


def _read_in_order(folder: Path) -> float:
    import netCDF4

    from mpitrain.data.describe.names import CICE_INPUTS, CICE_TARGET

    started = time.perf_counter()
    for path in sorted(folder.glob("*.nc")):
        with netCDF4.Dataset(str(path)) as dataset:
            for place in range(dataset.dimensions["time"].size):
                for name in (*CICE_INPUTS, CICE_TARGET):
                    dataset[name][place]
    return time.perf_counter() - started
