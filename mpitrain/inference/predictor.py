"""Predictions of a whole source of samples, in parallel and chunk by chunk, to one NetCDF file.

N  samples of a chunk   F  inputs   O  targets   H, W  rows and columns of a field   P  ranks   C  chunks

Every chunk is computed by itself, by one rank, and written in the source's order: the file's numbers are the same on
any number of ranks. No rank holds more than one chunk, and the root one received chunk besides it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from mpitrain.comm.ranks import Ranks
from mpitrain.config import RunConfig
from mpitrain.data.selection.chunks import SampleChunk
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import Selection, selection_of
from mpitrain.data.selection.source import SampleSource
from mpitrain.errors import DataError, MpitrainError
from mpitrain.inference.arithmetic import Arithmetic, Choice, with_means
from mpitrain.inference.cf_variables import extra_variables
from mpitrain.inference.ensemble import arithmetic_of
from mpitrain.inference.output_grid import Layout
from mpitrain.inference.rows import PredictionSink, RowLayout
from mpitrain.models.files.stored_network import StoredNetwork
from mpitrain.observe.page.skill import ErrorSums
from mpitrain.observe.summary import TargetSkill

# Of other data from the same source, a few values always lie beyond the largest and smallest seen before.
_NOTED_SHARE = 0.001
CHUNK_BYTES = 2 * 2**20


@dataclass(frozen=True)
class Prediction:
    """What was written: the statistics of each target in the data by its name, over all samples; numbers of samples.

    `outside` is the share of each input's values that lie outside of what the network was trained on, by name.
    """

    path: Path
    statistics: dict[str, ErrorSums]
    num_samples: int
    num_dropped: int
    outside: Mapping[str, float] = field(default_factory=dict)


def predict_to_file(
    network: StoredNetwork, source: SampleSource, path: Path, ranks: Ranks, with_jacobian: bool,
    arithmetic: Choice = "auto", written_as: Layout = "auto",
) -> Prediction:  # fmt: skip
    """Predict for every selected sample of `source`, and write `path` on the root, whole or not at all. Collective.

    `with_jacobian` adds the derivatives of points. Points with an input that is no measurement are left out and
    counted; fields have the mean there. `arithmetic`: see `choose_arithmetic`; the file says which it was.
    `written_as`: see `output_grid.Layout`. Raises DataError, OutputError, or UserError for a grid that the data lacks,
    on all ranks, with nothing left behind.
    """
    ranks.on_all_ranks(lambda: check_fit(network, source))
    sizes = network.num_inputs, network.num_outputs, source.grid_shape
    num_extra = len(extra_variables(network, source, with_jacobian))
    layout = RowLayout(source.kind, *sizes, with_jacobian, source.has_targets, num_extra)
    num_ranks, rank = ranks.world_size, ranks.rank
    network.module.to(ranks.device)
    chosen = ranks.on_all_ranks(lambda: arithmetic_of(network, arithmetic, source.num_points))
    sink = PredictionSink(network, source, path, layout, chosen.words, written_as)
    try:
        ranks.on_root(sink.open)
        for first in range(0, len(source.chunks), num_ranks):
            rows = ranks.on_all_ranks(partial(_rows_of, network, chosen, source, first + rank, layout, sink, ranks))
            _send_in_order(rows, source.chunks[first : first + num_ranks], sink, ranks)
        num_dropped = sum(ranks.gather_object(sink.num_dropped))
        counts = np.sum(ranks.gather_object(sink.num_outside), axis=0)  # (2, F): outside, all
        outside = {
            name: outside / all_ for name, outside, all_ in zip(source.input_names, *counts, strict=True) if all_
        }
        return ranks.on_root(lambda: Prediction(path, sink.finish(outside), sink.num_samples, num_dropped, outside))
    finally:
        sink.abandon()
        source.close()


def check_fit(network: StoredNetwork, source: SampleSource) -> None:
    """Raise DataError where the network has other numbers of inputs or targets than the samples."""
    for what, has, there in (
        ("inputs", network.num_inputs, source.input_names),
        ("targets", network.num_outputs, source.target_names),
    ):
        if has != len(there):
            key = "input_variables" if what == "inputs" else "output_variables"
            raise DataError(
                f"{source.files[0].path}: gives {len(there)} {what} ({', '.join(there)}), the model has {has}; set "
                f"variables.{key} to those that it was trained with"
            )


def _rows_of(
    network: StoredNetwork, arithmetic: Arithmetic, source: SampleSource, number: int, layout: RowLayout,
    sink: PredictionSink, ranks: Ranks,
) -> torch.Tensor:  # fmt: skip
    """Return the rows of chunk `number`, none where there is no such chunk."""
    if number >= len(source.chunks):
        return layout.no_rows()
    samples = source.read(source.chunks[number])
    if source.kind == "points":
        usable = np.isfinite(samples.inputs).all(axis=1)
        sink.num_dropped += int((~usable).sum())
        samples = samples if usable.all() else samples.take(np.flatnonzero(usable))
    if len(samples) == 0:
        return layout.no_rows()
    sink.num_outside += count_outside(network, samples.inputs)
    inputs = with_means(torch.from_numpy(samples.inputs).to(network.dtype), network.input_mean.detach().cpu())
    answers = arithmetic.evaluate(inputs.to(ranks.device), layout.with_jacobian)
    expected = (len(samples), layout.num_outputs, *layout.field_shape)
    if answers[0].shape != expected:
        raise DataError(f"the model answers in shape {answers[0].shape}, the targets have {expected}")
    return layout.pack(samples, *answers)


def count_outside(network: StoredNetwork, inputs: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
    """Return for each input how many values lie outside of the trained range, and how many there are (2, F).

    Zeros where the model's file does not say what it was trained on.
    """
    ranges = network.description.input_ranges
    counts = np.zeros((2, inputs.shape[1]), dtype=np.int64)
    for column, text in enumerate(ranges if len(ranges) == inputs.shape[1] else ()):
        low, high = (np.array(word, dtype=inputs.dtype) for word in text.split())
        values = inputs[:, column]
        counts[:, column] = np.sum((values < low) | (values > high)), np.sum(np.isfinite(values))
    return counts


def _send_in_order(
    rows: torch.Tensor, chunks: Sequence[SampleChunk], sink: PredictionSink, ranks: Ranks
) -> None:  # fmt: skip
    """Let the root write the ranks' rows, one rank's after the other, each of its own chunk. Collective."""
    num_ranks, rank = ranks.world_size, ranks.rank
    counts = ranks.gather_object(len(rows))
    failures: list[MpitrainError] = []
    for sender, chunk in enumerate(chunks):
        sent = [0] * num_ranks
        received = [0] * num_ranks
        if rank == sender:
            sent[0] = counts[sender]
        if ranks.is_root:
            received[sender] = counts[sender]
        part = rows if rank == sender else rows[:0]
        arrived = part if num_ranks == 1 else ranks.cpu.all_to_all_rows(part, sent, received)
        if ranks.is_root and not failures:
            try:
                sink.append(arrived, chunk)
            except MpitrainError as error:
                failures.append(error)
    ranks.on_root(lambda: _raise_first(failures))


def _raise_first(failures: list[MpitrainError]) -> None:
    if failures:
        raise failures[0]


def open_for_prediction(selection: Selection, num_predicted: int, ranks: Ranks) -> SampleSource:
    """Open the files of `selection` on the root, in small chunks, and return the source on every rank. Collective.

    They may lack the targets, of which the network predicts `num_predicted`: `source.notices` says so. Raises
    DataError, on all ranks, where a file cannot serve.
    """
    return ranks.on_root(lambda: open_source(selection, CHUNK_BYTES, num_predicted))


def selection_to_predict(config: RunConfig, files: Sequence[str] | None = None) -> Selection:
    """Return what `config` selects of `files`, unthinned: predictions are for all samples, whatever they count."""
    selection = selection_of(config, files, without_held_out=True)
    return replace(selection, max_patterns=None, thin_fraction=1.0, is_area_weighted=False, weighs_loss=False)


def describe_outside(prediction: Prediction, network: StoredNetwork) -> list[str]:
    """Return a line for each input of which more lies outside of the trained range than a few values would."""
    ranges = dict(zip(network.description.input_names, network.description.input_ranges, strict=False))
    return [
        f"input '{name}': {100 * share:.3g} % of its values lie outside of the trained range, from "
        f"{' to '.join(f'{float(word):.6g}' for word in ranges.get(name, '').split())}; predictions there are a guess"
        for name, share in prediction.outside.items()
        if share > _NOTED_SHARE
    ]


def describe_prediction(prediction: Prediction, units: Mapping[str, str]) -> list[str]:
    """Return what the user is told of a prediction: a line for each target, and where the file is."""
    lines = []
    for name, found in prediction.statistics.items():
        skill = TargetSkill(name, units.get(name, ""), found.bias, found.rmse, found.r2)
        lines.append(f"{skill.words}, {found.count} values")
    dropped = f" ({prediction.num_dropped} with an input that is no measurement are left out)"
    count = f"{prediction.num_samples} samples{dropped if prediction.num_dropped else ''}"
    return [*lines, f"prediction: {prediction.path}, {count}"]
