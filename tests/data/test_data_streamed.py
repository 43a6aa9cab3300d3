"""Data read from files in each epoch: order, counts, statistics and reads, with ranks played by threads."""

import os
import threading
import time
import zlib

import h5py
import numpy as np
import pytest
import zarr
from field_files import config_of, counted_reads, write_netcdf
from played_ranks import on_played_ranks, played_ranks_of
from streaming_cases import CHUNK_BYTES, V, joined, numbers_of, stream, write_numbers

from mpitrain.comm.arrays import host_array
from mpitrain.comm.virtual_ranks import VirtualRanks
from mpitrain.data.dataset.exchange import read_own_chunks
from mpitrain.data.dataset.in_memory import distribute
from mpitrain.data.dataset.split import plan_split
from mpitrain.data.dataset.split_rule import VALIDATION, split_rule
from mpitrain.data.files.stored_sum import StoredSum
from mpitrain.data.formats.open import open_field_file
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.data.streaming import dataset as streamed_data
from mpitrain.errors import DataError
from mpitrain.inference.quality.answers import answers_of
from mpitrain.runs.prepare import prepare

MISSING = (5, 700, 701, 2879)
BY_AREA = ("training.area_weighted_loss=true", "data.area_variable=area")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("stream") / "xy.nc", missing=MISSING)


def in_memory(path, *settings):
    """What one rank holds in memory of the same files."""
    config = config_of(path, *settings)

    def body(communicator):
        ranks = played_ranks_of(communicator)
        samples = read_own_chunks(open_source(selection_of(config), CHUNK_BYTES), ranks)
        plan = VirtualRanks(V, 1, 0)
        return distribute(samples, ranks, plan, split_rule(config.split_data), "float32")

    return on_played_ranks(1, body)[0]


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
def test_the_slices_are_the_same_for_any_number_of_ranks(path, num_ranks):
    alone, together = (joined(stream(path, count, epoch=2)) for count in (1, num_ranks))
    assert sorted(together) == list(range(V))
    for v, slices in alone.items():
        for piece, other in zip(slices, together[v], strict=True):
            assert np.array_equal(piece.inputs, other.inputs)
            assert np.array_equal(piece.targets, other.targets)
            assert np.array_equal(piece.weights, other.weights)


def test_each_training_sample_comes_once_an_epoch_and_no_other(path):
    data = in_memory(path)
    wanted = sorted(int(x) for own in data.training for x in own.inputs[:, 0])
    orders = []
    for epoch in (0, 1):
        (seen,) = stream(path, 1, epoch=epoch)
        orders.append([numbers_of(slices) for slices in seen.slices.values()])
        assert sorted(number for own in orders[-1] for number in own) == wanted
        assert seen.data.summary.num_training_samples == len(wanted) == data.summary.num_training_samples
        assert all(piece.inputs.shape == (8, 1) for slices in seen.slices.values() for piece in slices)
    assert orders[0] != orders[1]
    assert all(sorted(one) == sorted(other) for one, other in zip(*orders, strict=True)), "a chunk keeps its owner"
    assert not set(MISSING) & set(wanted)
    held_out = {int(x) for own in data.validation for x in own.inputs[:, 0]}
    blocks = [block for source in seen.data.evaluation() for block in source.blocks()]
    assert sorted(int(x) for block in blocks for x in block.inputs[:, 0]) == sorted(held_out)


def test_no_block_of_the_files_is_read_twice_in_an_epoch(path):
    with counted_reads() as reads:
        parts = stream(path, 2)
    assert len(reads) == 2 * 60  # two variables, a block each time level
    assert set(reads.values()) == {2}, "once in the first pass, once in the epoch"
    # Held-out samples were kept when their chunk was read.
    with counted_reads() as reads:
        for part in parts:
            assert sum(len(b.inputs) for own in part.data.evaluation() for b in own.blocks()) > 0
    assert not reads


@pytest.mark.parametrize("first_step", [1, 13, 30, 41])
def test_an_epoch_goes_on_from_any_step_on_another_number_of_ranks(path, first_step):
    whole = joined(stream(path, 1, epoch=1, buffer=16))
    with counted_reads() as reads:
        rest = stream(path, 3, epoch=1, first_step=first_step, buffer=16)
    for v, slices in joined(rest).items():
        assert len(slices) == len(whole[v]) - first_step > 0
        for piece, other in zip(slices, whole[v][first_step:], strict=True):
            assert np.array_equal(piece.inputs, other.inputs)
            assert np.array_equal(piece.weights, other.weights)
    num_reads = reads.total() - 2 * 60  # those of the first pass
    assert num_reads <= 120
    if first_step == 41:
        assert num_reads < 60, "only chunks of which a sample is still to come"


def test_the_order_of_the_files_without_shuffling(path):
    (seen,) = stream(path, 1, "training.shuffle=false", buffer=32)
    for v, slices in seen.slices.items():
        numbers = numbers_of(slices)
        assert numbers == sorted(numbers)
        assert len(numbers) == seen.data.first_pass.counts.training[v::V].sum()


@pytest.mark.parametrize("settings", [(), ("data.max_patterns=777",), ("data.thin_fraction=0.4",)])
def test_statistics_and_counts_are_those_in_memory(path, settings):
    (seen,) = stream(path, 1, *settings)
    streamed, held = seen.data.summary, in_memory(path, *settings).summary
    for name in ("num_training_samples", "num_validation_samples", "num_dropped_samples", "num_missing"):
        assert getattr(streamed, name) == getattr(held, name)
    for name in ("count", "mean", "m2", "minimum", "maximum"):
        np.testing.assert_allclose(getattr(streamed.moments, name), getattr(held.moments, name), rtol=1e-12)
    if settings == ("data.max_patterns=777",):
        assert streamed.num_training_samples + streamed.num_validation_samples + streamed.num_dropped_samples == 777
    for num_ranks in (2, 3, 8):
        for part in stream(path, num_ranks, *settings):
            for name in ("mean", "m2"):
                found, wanted = (getattr(one.moments, name) for one in (part.data.summary, streamed))
                assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("num_ranks", [1, 3])
@pytest.mark.parametrize("v", [16, 32])
def test_each_sample_is_evaluated_by_one_microbatch_where_several_share_a_stream(path, num_ranks, v):
    parts = stream(path, num_ranks, batch=8 * v, v=v, streams=8)
    held = in_memory(path)
    for held_out, samples in ((True, held.validation), (False, held.training)):
        sources = [source for part in parts for source in part.data.evaluation(held_out)]
        own = [[int(x) for block in source.blocks() for x in block.inputs[:, 0]] for source in sources]
        assert sum(map(bool, own)) > 8, "more microbatches than streams have samples"
        assert sorted(number for one in own for number in one) == sorted(
            int(x) for one in samples for x in one.inputs[:, 0]
        )


def write_areas(path):
    """Points that tell their own number, in rows of areas 1 to 6, and what is learnt of them, other in each row."""
    shape = (70, 6, 8)
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    area = np.broadcast_to(np.arange(1.0, 7.0)[:, None], shape[1:])
    grid = ("time", "nj", "ni")
    variables = {"x": (grid, x), "y": (grid, (x % 97 + 100 * area**2).astype(np.float32)), "area": (grid[1:], area)}
    return write_netcdf(path, variables, chunks={name: (1, *shape[1:]) for name in "xy"})


def area_of(x):
    """The weights of points by their numbers: areas in the largest power of two that is no larger than all of them."""
    return (1 + x // 8 % 6) / 4


@pytest.mark.parametrize("validation_split", [0, 0.1])
def test_streamed_points_weigh_their_areas(tmp_path, validation_split):
    """In chunks of which all points are trained on, and in others."""
    settings = (*BY_AREA, f"data.validation_split={validation_split}")
    (seen,) = stream(write_areas(tmp_path / "xy.nc"), 1, *settings)
    trained = [piece for slices in seen.slices.values() for piece in slices]
    blocks = [
        [block for source in seen.data.evaluation(held_out) for block in source.blocks()] for held_out in (True, False)
    ]
    for pieces, count in (
        (trained, seen.data.summary.num_training_samples),
        (blocks[0], seen.data.summary.num_validation_samples),
        (blocks[1], seen.data.summary.num_training_samples),
    ):
        is_padding = np.concatenate([np.empty(0), *(piece.weights[:, 0] == 0 for piece in pieces)]).astype(bool)
        x, weights = (
            np.concatenate([np.empty(0), *(getattr(piece, name)[:, 0] for piece in pieces)])[~is_padding]
            for name in ("inputs", "weights")
        )
        assert len(x) == count
        np.testing.assert_array_equal(weights, area_of(x))


@pytest.mark.parametrize("engine", ["eager", pytest.param("compiled", marks=pytest.mark.lab)])
@pytest.mark.parametrize("settings", [(), BY_AREA])
def test_losses_of_what_is_streamed_are_over_all_its_samples(tmp_path, settings, engine):
    """Of 128 microbatches, sixteen a stream: the first full batch, and the held-out samples, by the weights drawn."""
    network = ("model.name=mlp", "model.hidden_layers=1", "model.hidden_size=4", f"training.engine={engine}")
    config = config_of(
        write_areas(tmp_path / "xy.nc"), "data.streaming=true", "training.global_batch_size=full", *network, *settings
    )

    def body(communicator):
        ranks = played_ranks_of(communicator)
        source = ranks.on_root(lambda: open_source(selection_of(config), CHUNK_BYTES))
        prepared = prepare(config, source, ranks, None)
        assert prepared.layout.virtual_ranks.num_virtual_ranks > prepared.layout.virtual_ranks.num_streams
        engine, samples = prepared.engine, source.read_all()
        error = answers_of(prepared.model).learnt(samples.inputs).astype(np.float64) - samples.targets
        squares = (error / host_array(prepared.dataset.summary.normalization.output_std)) ** 2
        is_held_out = plan_split(config.split_data, source).roles(samples.grid_index, 0) == VALIDATION
        weights = area_of(samples.inputs) if settings else np.ones_like(squares)
        expected = [np.average(squares[one], weights=weights[one]) for one in (is_held_out, ~is_held_out)]
        found = engine.validation_loss()
        engine.start_epoch(0)
        return [found, *engine.take_steps(0, 1, 0.001, False).losses], expected

    ((found, expected),) = on_played_ranks(1, body)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_fields_with_a_mask_stream_as_they_train_in_memory(path):
    settings = ("data.samples=fields", "domain.mask=x > 3")
    (seen,) = stream(path, 1, *settings, batch=16)
    held = in_memory(path, *settings)
    streamed = {int(p[0, 0, 1]): (p, t, w) for s in seen.slices.values() for one in s
                for p, t, w in zip(one.inputs, one.targets, one.weights, strict=True) if w.sum() > 0}  # fmt: skip
    kept = {int(p[0, 0, 1]): (p, t, w) for own in held.training
            for p, t, w in zip(own.inputs, own.targets, own.weights, strict=True)}  # fmt: skip
    assert streamed.keys() == kept.keys()
    for number, tensors in kept.items():
        for one, other in zip(streamed[number], tensors, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=0)
    assert seen.plan.steps_per_epoch * 2 >= seen.data.summary.largest_share


def test_a_virtual_rank_without_samples_gets_slices_of_no_weight(tmp_path):
    (seen,) = stream(write_numbers(tmp_path / "few.nc", (3, 6, 8)), 1)
    weights = {v: sum(float(piece.weights.sum()) for piece in slices) for v, slices in seen.slices.items()}
    assert [v for v, weight in weights.items() if weight == 0] == [3, 4, 5, 6, 7]
    assert {piece.inputs.shape for slices in seen.slices.values() for piece in slices} == {
        (seen.plan.microbatch_rows, 1)
    }
    assert "the streams hold 0 to" in seen.data.notices[0]


def test_a_file_that_changes_between_epochs_is_an_error_of_the_next_slice(tmp_path):
    path = write_numbers(tmp_path / "xy.nc")
    (seen,) = stream(path, 1)
    (source, *_) = seen.data.microbatches(seen.plan, 0, True)
    source.start_epoch(1)
    source.microbatch(0)
    os.utime(path, ns=(1, 1))
    with pytest.raises(DataError, match=r"xy\.nc: changed since the run began"):
        [source.microbatch(step) for step in range(1, seen.plan.steps_per_epoch)]


def change_a_value(path, storage):
    """Change a page of values in the middle of the file, or a bit where all bytes count; not size or time of change."""
    if storage == "zarr":
        place = path / "x" / "c" / "3" / "0" / "0"
        before = place.stat()
        place.write_bytes(bytes(one ^ 1 for one in place.read_bytes()))
        os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
        return
    with h5py.File(path, locking=False) as file:
        data = file["x"]
        info = data.id.get_chunk_info_by_coord((3, 0, 0)) if data.chunks else None
        offset = info.byte_offset if info else data.id.get_offset() + data[:3].nbytes
    before, content = path.stat(), bytearray(path.read_bytes())
    if storage == "packed":
        unpacked = bytearray(zlib.decompress(content[offset : offset + info.size]))
        unpacked[4] ^= 1
        content[offset : offset + info.size] = zlib.compress(unpacked, 0)
    else:
        content[offset + 4 : offset + 4 + 4096] = bytes(one ^ 1 for one in content[offset + 4 : offset + 4 + 4096])
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def read_epoch(seen, epoch):
    for source in seen.data.microbatches(seen.plan, 0, True):
        source.start_epoch(epoch)
        [source.microbatch(step) for step in range(seen.plan.steps_per_epoch)]


@pytest.mark.parametrize("storage", ["contiguous", "in blocks", "packed", "zarr"])
def test_bytes_that_change_without_the_time_of_change_are_noticed(tmp_path, storage):
    shape = (6, 64, 80)
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    path = tmp_path / ("xy.zarr" if storage == "zarr" else "xy.h5")
    if storage == "zarr":
        group = zarr.open_group(str(path), mode="w")
        for name, values in (("x", x), ("y", x / 2)):
            dims = {"dimension_names": ("time", "nj", "ni")}
            group.create_array(name, shape=shape, chunks=(1, *shape[1:]), dtype="f4", compressors=None, **dims)[:] = (
                values
            )
    else:
        options = {"contiguous": {}, "in blocks": {"chunks": (1, *shape[1:])}}
        options["packed"] = options["in blocks"] | {"compression": "gzip", "compression_opts": 0}
        with h5py.File(path, "w") as file:
            for name, values in (("x", x), ("y", x / 2)):
                file.create_dataset(name, data=values, **options[storage])
    (seen,) = stream(path, 1, batch=4096)
    read_epoch(seen, 1)  # unchanged: no false alarm
    change_a_value(path, storage)
    with pytest.raises(DataError, match=r"xy\.(h5|zarr): its content has changed since it was first read"):
        read_epoch(seen, 2)


def test_every_value_of_a_file_that_is_read_whole_counts_in_any_part(tmp_path):
    def sum_of(x):
        np.savez(tmp_path / "xy.npz", x=x, y=np.ones(9))
        file = open_field_file(tmp_path / "xy.npz")
        sums = []
        for part in (slice(0, 1), slice(5, 7), slice(0, 1)):
            file.read_stored("x", (part,))
            sums.append(file.stored_sum.take())
        file.close()
        assert len(set(sums)) == 1
        return sums[0]

    values = np.arange(5000.0)
    changed = values.copy()
    changed[4321] += 1
    assert sum_of(values) != sum_of(changed)
    assert sum_of(values) == sum_of(values)


@pytest.mark.parametrize("dtype", ["<f4", ">f8", "i1", "M8[s]"])
def test_no_page_of_values_and_no_value_of_a_small_part_is_left_out_of_the_checksum(dtype):
    def sum_of(values):
        one = StoredSum()
        one.add_values(values)
        return one.take()

    for num_bytes in (0, 800, 16384, 20000, 99992):
        values = np.arange(num_bytes // np.dtype(dtype).itemsize).astype(dtype)
        page = 4096 // values.itemsize if num_bytes > 16384 else 1
        for start in range(0, len(values) - page + 1, page):
            changed = values.copy()
            changed[start : start + page] += 1
            assert sum_of(changed) != sum_of(values), (num_bytes, start)
        assert sum_of(values) == sum_of(np.repeat(values, 2)[::2]), "a part that is no block in memory"


def test_held_out_samples_beyond_the_limit_are_read_again(path, monkeypatch):
    (kept,) = stream(path, 1)
    expected = [block for source in kept.data.evaluation() for block in source.blocks()]
    monkeypatch.setattr(streamed_data, "HELD_OUT_BYTES", 200)
    (seen,) = stream(path, 1)
    with counted_reads() as reads:
        blocks = [block for source in seen.data.evaluation() for block in source.blocks()]
    assert reads
    for block, other in zip(blocks, expected, strict=True):
        assert np.array_equal(block.inputs, other.inputs)


@pytest.mark.lab
def test_a_handle_that_is_forgotten_inside_h5py_does_not_wait_for_a_thread_that_reads(path):
    """A finaliser runs wherever a thread happens to be: here with h5py's lock, for which the reading one waits."""
    from h5py._objects import phil

    reads, forgotten = open_field_file(path), open_field_file(path)
    found = []
    reading = threading.Thread(target=lambda: found.append(reads.read_stored("x", (slice(0, 1),)).shape), daemon=True)

    def forget():
        nonlocal forgotten
        with phil:
            reading.start()
            time.sleep(0.3)  # until the reading thread waits; were it later, the test would pass for nothing
            forgotten = None

    forgetting = threading.Thread(target=forget, daemon=True)
    forgetting.start()
    forgetting.join(20)
    reading.join(20)
    assert found == [(1, 6, 8)]
    reads.close()
