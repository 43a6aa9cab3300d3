"""Conversion of selected samples of any files to tables for fast reading: `.npz`, HDF5, or a folder of HDF5 parts.

N  samples      F  inputs      O  targets      P  real ranks

A table contains `inputs` (N, F, ...) and `targets` (N, O, ...), NaN for missing values, in the order of the source.
Each file contains the same samples for any number of ranks. The output appears under its name only when it is
complete and flushed to the disk.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from mpitrain.comm import Ranks
from mpitrain.comm.virtual_ranks import rank_range
from mpitrain.data import Samples, SampleSource, Selection, open_source_on_root
from mpitrain.data.dataset.exchange import keep_under_limit, no_samples
from mpitrain.data.streaming.first_pass import count_selected
from mpitrain.datatools.table_writers import Array, Hdf5TableWriter, NpzTableWriter, TableWriter
from mpitrain.durable_files import check_ending, sync_file, sync_folder, temporary_name
from mpitrain.errors import OutputError, writing

# Approximate size of a part of a folder.
PART_BYTES = 256 * 2**20
_FILES = ".npz", ".h5", ".hdf5"


@dataclass(frozen=True)
class Converted:
    """Result of a conversion: `files` in the order of their samples, and the total number of samples."""

    files: tuple[Path, ...]
    num_samples: int


def convert(selection: Selection, output: Path, ranks: Ranks, gzip: int = 0, part_bytes: int = PART_BYTES) -> Converted:
    """Write the selected samples to `output`: `.npz`, `.h5` or `.hdf5`, otherwise a new folder. Collective.

    Every rank reads its share of the chunks; the root writes a single file, and each part of a folder is written by
    one rank. `gzip` is HDF5's compression level, 0 for none. Memory: a few chunks per rank, for data of any size.
    Raises DataError if a file cannot be read, OutputError if `output` exists already, has another ending or cannot be
    written; no output is left after an error.
    """
    ranks.on_root(lambda: _check_target(output))
    source = open_source_on_root(selection, ranks)
    ranks.note(*source.notices)
    before = _selected_before(source, ranks)
    if output.suffix in _FILES:
        return _convert_to_file(source, output, ranks, gzip, before)
    return _convert_to_folder(source, output, ranks, gzip, before, part_bytes)


def _check_target(output: Path) -> None:
    with writing(output, "give a name with one of these"):
        check_ending(output, (*_FILES, ""))
    if output.exists():
        raise OutputError(f"{output}: exists already; remove it, or give another --output")
    if not output.resolve().parent.is_dir():
        raise OutputError(f"{output}: its folder does not exist; create {output.resolve().parent} first")


def _selected_before(source: SampleSource, ranks: Ranks) -> list[int]:
    """Return the number of samples selected before each chunk, and in total; all 0 without `max_patterns`."""
    if source.max_patterns is None:
        return [0] * (len(source.chunks) + 1)
    counts = count_selected(source, ranks)
    return [0, *itertools.accumulate(counts)]


def _read(source: SampleSource, chunk: int, before: list[int]) -> Samples:
    return keep_under_limit(source, source.read(source.chunks[chunk]), before[chunk], before[-1])


def _convert_to_file(source: SampleSource, output: Path, ranks: Ranks, gzip: int, before: list[int]) -> Converted:
    """Write a file: in each turn every rank reads one chunk, and the root writes them in order. Collective."""
    with _replacing(output, ranks) as temporary, ExitStack() as at_end:
        writer = ranks.on_all_ranks(lambda: _open_writer(source, temporary, output, gzip) if ranks.is_root else None)
        if writer is not None:
            at_end.callback(writer.give_up)
        for turn in range(-(-len(source.chunks) // ranks.world_size)):
            samples = ranks.on_all_ranks(partial(_read_in_turn, source, turn, ranks, before))
            inputs, targets = (_to_root(array, ranks) for array in (samples.inputs, samples.targets))
            ranks.on_all_ranks(partial(_append, writer, output, inputs, targets))
        num_samples = ranks.on_root(lambda: 0 if writer is None else writer.num_samples)
        ranks.on_all_ranks(lambda: _check_any(source, num_samples))
        ranks.on_all_ranks(lambda: _finish(writer, temporary, output))
    return Converted((output,), num_samples)


def _open_writer(source: SampleSource, temporary: Path, output: Path, gzip: int) -> TableWriter:
    with _writing(output):
        if output.suffix == ".npz":
            return NpzTableWriter(temporary, source.input_names, source.target_names)
        return Hdf5TableWriter(temporary, source.input_names, source.target_names, gzip)


def _read_in_turn(source: SampleSource, turn: int, ranks: Ranks, before: list[int]) -> Samples:
    """Return the samples of this rank's chunk of a turn; no samples if the last turn has no chunk for it."""
    chunk = turn * ranks.world_size + ranks.rank
    if chunk < len(source.chunks):
        return _read(source, chunk, before)
    return no_samples(source)


def _append(writer: TableWriter | None, output: Path, inputs: Array, targets: Array) -> None:
    if writer is not None:
        with _writing(output):
            writer.append(inputs, targets)


def _finish(writer: TableWriter | None, temporary: Path, output: Path) -> None:
    if writer is not None:
        with _writing(output):
            writer.close()
            sync_file(temporary)
            temporary.replace(output)
            sync_folder(output.resolve().parent)


def _check_any(source: SampleSource, num_samples: int) -> None:
    if num_samples == 0:
        source.check_selection(0, ())


def _to_root(rows: Array, ranks: Ranks) -> Array:
    """Return the rows of all ranks in rank order on the root, no rows on other ranks. Collective."""
    if ranks.world_size == 1:
        return rows
    others = [0] * (ranks.world_size - 1)
    counts = ranks.gather_object(len(rows))
    receive = counts if ranks.is_root else [0] * len(counts)
    tensor = torch.from_numpy(np.ascontiguousarray(rows))
    return np.asarray(ranks.cpu.all_to_all_rows(tensor, [len(rows), *others], receive).numpy())


def _convert_to_folder(
    source: SampleSource, output: Path, ranks: Ranks, gzip: int, before: list[int], part_bytes: int
) -> Converted:
    """Write a folder: each rank writes its share of the parts; the folder is renamed when complete. Collective."""
    parts = _parts(source, part_bytes)
    digits = max(4, len(str(len(parts))))
    names = [f"part-{number:0{digits}d}.h5" for number in range(1, len(parts) + 1)]
    with _replacing(output, ranks) as folder:
        ranks.on_root(lambda: _make_folder(folder, output))
        own = rank_range(len(parts), ranks.world_size, ranks.rank)
        written = ranks.on_all_ranks(
            lambda: {names[n]: _write_part(source, folder / names[n], output, parts[n], gzip, before) for n in own}
        )
        counts = {name: count for of_rank in ranks.gather_object(written) for name, count in of_rank.items()}
        ranks.on_all_ranks(lambda: _check_any(source, sum(counts.values())))
        empty = [name for name in names if counts[name] == 0]
        ranks.on_root(lambda: _publish(folder, output, empty))
    kept = tuple(output / name for name in names if name not in empty)
    return Converted(kept, sum(counts.values()))


def _parts(source: SampleSource, part_bytes: int) -> list[range]:
    """Return the range of chunks of each part: its size is about `part_bytes` if all points are selected."""
    row_bytes = 4 * (len(source.input_names) + len(source.target_names))
    parts, first, size = [], 0, 0
    for number, chunk in enumerate(source.chunks):
        times, rows = chunk.time_stop - chunk.time_start, chunk.row_stop - chunk.row_start
        size += times * rows * source.grid_shape[1] * row_bytes
        if size >= part_bytes or number == len(source.chunks) - 1:
            parts.append(range(first, number + 1))
            first, size = number + 1, 0
    return parts


def _write_part(source: SampleSource, path: Path, output: Path, chunks: range, gzip: int, before: list[int]) -> int:
    with ExitStack() as at_end:
        writer = _open_writer(source, path, output, gzip)
        at_end.callback(writer.give_up)
        for chunk in chunks:
            samples = _read(source, chunk, before)
            _append(writer, output, samples.inputs, samples.targets)
        with _writing(output):
            writer.close()
            sync_file(path)
    return writer.num_samples


def _make_folder(folder: Path, output: Path) -> None:
    with _writing(output):
        folder.mkdir()


def _publish(folder: Path, output: Path, empty: list[str]) -> None:
    with _writing(output):
        for name in empty:
            (folder / name).unlink()
        sync_folder(folder)
        folder.replace(output)
        sync_folder(output.resolve().parent)


@contextmanager
def _replacing(output: Path, ranks: Ranks) -> Iterator[Path]:
    """Yield a temporary name next to the output; at the end the root removes what an error left there. Collective."""
    temporary: Path = ranks.on_root(lambda: temporary_name(output))
    try:
        yield temporary
    finally:
        if ranks.is_root:
            _remove(temporary)


def _remove(path: Path) -> None:
    for rest in path.parent.glob(f"{path.name}*"):
        if rest.is_dir():
            shutil.rmtree(rest, ignore_errors=True)
        else:
            with suppress(OSError):
                rest.unlink()


def _writing(output: Path) -> AbstractContextManager[None]:
    # h5py reports a failed write by any of these exceptions.
    refusals = (OSError, RuntimeError, ValueError)
    return writing(output, "give a writable path on a disk with enough space", refusals)
