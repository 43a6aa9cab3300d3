"""Predict for all samples of a source, in parallel and chunk by chunk, and write one NetCDF file.

N  samples of a chunk   F  inputs   O  targets   H, W  rows and columns of a field   P  ranks   C  chunks

Each chunk is computed separately by one rank and written in the order of the source: the file's numbers are the same
on any number of ranks. A rank holds at most one chunk in memory; the root also holds one that it has received.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mpitrain.comm import Ranks
from mpitrain.config import RunConfig
from mpitrain.data import Roles, SampleSource, Selection, open_source
from mpitrain.data.selection.chunks import SampleChunk
from mpitrain.data.selection.settings import selection_to_predict
from mpitrain.errors import DataError, MpitrainError
from mpitrain.inference.arithmetic import Arithmetic, Array, Choice, fill_with_means
from mpitrain.inference.ensemble import arithmetic_of
from mpitrain.inference.other_formats import NETCDF as NETCDF
from mpitrain.inference.other_formats import layout_in as layout_in
from mpitrain.inference.output_grid import Layout
from mpitrain.inference.rows import PredictionSink, RowLayout, row_layout_of
from mpitrain.inference.rows import check_prediction as check_prediction  # for checks when a run begins
from mpitrain.models import StoredNetwork
from mpitrain.observe import ErrorSums, TargetSkill

# A few values of new data always lie outside of the range of the training data: no notice up to this share.
_NOTED_SHARE = 0.001
CHUNK_BYTES = 2 * 2**20
_ROLE_TEXTS = {
    "training": "trained on", "validation": "held out for validation", "test": "kept for a test",
    "unused": "not used in training",
}  # fmt: skip


@dataclass(frozen=True)
class Prediction:
    """Result of a prediction: error statistics over all samples for each target in the data; numbers of samples.

    `outside`: the share of each input's values that lie outside of the range of the training data, by name. `by_role`:
    the statistics by the samples' role in training, if known. `beyond_data`: for each target, how many values were
    predicted where the data has no value, and how many were predicted in all; empty without targets.
    """

    path: Path
    statistics: dict[str, ErrorSums]
    num_samples: int
    num_dropped: int
    outside: Mapping[str, float] = field(default_factory=dict)
    by_role: Mapping[str, Mapping[str, ErrorSums]] = field(default_factory=dict)
    beyond_data: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def predict_to_file(
    network: StoredNetwork, source: SampleSource, path: Path, ranks: Ranks, with_jacobian: bool,
    arithmetic: Choice = "auto", written_as: Layout = "auto", roles: Roles | None = None,
) -> Prediction:  # fmt: skip
    """Predict for every selected sample of `source`; the root writes `path`, completely or not at all. Collective.

    The ending of `path` selects the format (see `check_format`); CSV and Parquet have one row per sample.
    `with_jacobian` adds derivatives (points only). Points with a missing input are left out and counted; in fields the
    input's mean replaces missing values. `arithmetic`: see `choose_arithmetic`; the file records the one used.
    `written_as`: see `output_grid.Layout`. `roles`: the samples' roles in training, on the root. Raises DataError,
    OutputError, or UserError if a grid is requested that the data lacks; on all ranks, leaving no file behind.
    """
    ranks.on_all_ranks(lambda: check_fit(network, source))
    layout = row_layout_of(network, source, with_jacobian)
    written_as = ranks.on_all_ranks(lambda: layout_in(path, written_as, source.kind))
    num_ranks, rank = ranks.world_size, ranks.rank
    if ranks.device.type != "cpu":
        network.module.to(ranks.device)
    chosen = ranks.on_all_ranks(lambda: arithmetic_of(network, arithmetic, source.num_points))
    ranks.set_torch_threads()  # used if the arithmetic is torch's
    sink = PredictionSink(network, source, path, layout, chosen.description, written_as, roles)
    try:
        ranks.on_root(sink.open)
        for first in range(0, len(source.chunks), num_ranks):
            rows = ranks.on_all_ranks(partial(_rows_of, network, chosen, source, first + rank, layout, sink))
            _send_in_order(rows, source.chunks[first : first + num_ranks], sink, ranks)
        num_dropped = sum(ranks.gather_object(sink.num_dropped))
        counts = np.sum(ranks.gather_object(sink.num_outside), axis=0)  # (2, F): values outside, all values
        outside = {
            name: outside / all_ for name, outside, all_ in zip(source.input_names, *counts, strict=True) if all_
        }
        return ranks.on_root(
            lambda: Prediction(
                path, sink.finish(outside), sink.num_samples, num_dropped, outside, sink.by_role, sink.beyond_data
            )
        )
    finally:
        sink.abandon()
        source.close()


def check_fit(network: StoredNetwork, source: SampleSource) -> None:
    """Raise DataError if the network's numbers of inputs and targets are not those of the samples."""
    for kind, expected, names in (
        ("inputs", network.num_inputs, source.input_names),
        ("targets", network.num_outputs, source.target_names),
    ):
        if expected != len(names):
            key = "input_variables" if kind == "inputs" else "output_variables"
            raise DataError(
                f"{source.files[0].path}: gives {len(names)} {kind} ({', '.join(names)}), the model has {expected}; "
                f"set variables.{key} to those that it was trained with"
            )


def _rows_of(
    network: StoredNetwork, arithmetic: Arithmetic, source: SampleSource, number: int, layout: RowLayout,
    sink: PredictionSink,
) -> Array:  # fmt: skip
    """Return the predicted rows of chunk `number`; no rows if there is no such chunk."""
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
    inputs = fill_with_means(samples.inputs.astype(network.dtype), network.input_mean)
    answers = arithmetic.evaluate(inputs, layout.with_jacobian)
    expected = (len(samples), layout.num_outputs, *layout.field_shape)
    if answers[0].shape != expected:
        raise DataError(f"the model returns shape {answers[0].shape}, the targets have {expected}")
    return layout.pack(samples, *answers)


def count_outside(network: StoredNetwork, inputs: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
    """Return for each input how many values lie outside of the trained range, and how many are finite (2, F).

    Zeros if the model's file does not record the ranges of the training data.
    """
    ranges = network.description.input_ranges
    counts = np.zeros((2, inputs.shape[1]), dtype=np.int64)
    for column, text in enumerate(ranges if len(ranges) == inputs.shape[1] else ()):
        low, high = (np.array(bound, dtype=inputs.dtype) for bound in text.split())
        values = inputs[:, column]
        counts[:, column] = np.sum((values < low) | (values > high)), np.sum(np.isfinite(values))
    return counts


def _send_in_order(
    rows: Array, chunks: Sequence[SampleChunk], sink: PredictionSink, ranks: Ranks
) -> None:  # fmt: skip
    """Send the rows of each rank's chunk to the root, which appends them in the order of the ranks. Collective."""
    num_ranks, rank = ranks.world_size, ranks.rank
    counts = ranks.gather_object(len(rows))
    failures: list[MpitrainError] = []
    for sender, chunk in enumerate(chunks):
        part = rows if rank == sender else rows[:0]
        sent = [len(part), *[0] * (num_ranks - 1)]
        received = [counts[sender] if ranks.is_root and one == sender else 0 for one in range(num_ranks)]
        arrived = part if num_ranks == 1 else ranks.cpu.all_to_all_rows(part, sent, received)
        if ranks.is_root and not failures:
            try:
                sink.append(arrived, chunk)
            except MpitrainError as error:  # raised after the exchange, in which the other ranks take part
                failures.append(error)
    ranks.on_root(lambda: _raise_first(failures))


def _raise_first(failures: list[MpitrainError]) -> None:
    if failures:
        raise failures[0]


def open_for_prediction(selection: Selection, num_predicted: int, ranks: Ranks) -> SampleSource:
    """Open the files of `selection` on the root, in small chunks, and return the source on every rank. Collective.

    The files may lack the targets, and `source.notices` then contains a notice; the network predicts `num_predicted`
    targets. Raises DataError on all ranks if a file cannot be used.
    """
    return ranks.on_root(lambda: open_source(selection, CHUNK_BYTES, num_predicted, ranks.watch.note_file))


def open_data(config: RunConfig, files: Sequence[str]) -> SampleSource | None:
    """Return the source of the samples that a run's settings select from `files`; None if a file cannot be read."""
    try:
        return open_source(selection_to_predict(config, files), CHUNK_BYTES)
    except DataError:
        return None


def describe_doubts(prediction: Prediction, network: StoredNetwork, source: SampleSource) -> list[str]:
    """Return a notice for each reason not to trust a part of the predictions."""
    return [
        *_describe_constant(network),
        *_describe_outside(prediction, network),
        *_describe_beyond_data(prediction, source.layout.is_grid and 1 not in source.grid_shape),
    ]


def _describe_beyond_data(prediction: Prediction, may_have_land: bool) -> list[str]:
    """Return notices for predictions at points where the data has no value, of targets that it has elsewhere."""
    targets: dict[tuple[int, int], list[str]] = {}
    for name, counts in prediction.beyond_data.items():
        targets.setdefault(counts, []).append(name)
    example, advice = (" (as over land)", "; domain.mask_mode=ocean leaves them out") if may_have_land else ("", "")
    return [
        f"{', '.join(names)}: {number:,} of {all_:,} predictions are where the data has no value{example}, so their "
        f"errors are unknown{advice}"
        for (number, all_), names in targets.items()
        if 0 < number < all_
    ]


def _describe_constant(network: StoredNetwork) -> list[str]:
    """Return a notice for each input that was constant over all training samples."""
    named = zip(network.description.input_names, network.description.input_ranges, strict=False)
    return [
        f"input '{name}': {float(text.split()[0]):.6g} in all training samples; its effect on predictions, and "
        "the derivatives with respect to it, come from the random initial weights"
        for name, text in named
        if len(set(map(float, text.split()))) == 1
    ]


def _describe_outside(prediction: Prediction, network: StoredNetwork) -> list[str]:
    """Return a notice for each input that has more than a few values outside of the trained range."""
    ranges = dict(zip(network.description.input_names, network.description.input_ranges, strict=False))
    return [
        f"input '{name}': {100 * share:.3g} % of its values lie outside of the trained range, from "
        f"{' to '.join(f'{float(word):.6g}' for word in ranges.get(name, '').split())}; these predictions extrapolate"
        for name, share in prediction.outside.items()
        if share > _NOTED_SHARE
    ]


def print_prediction(prediction: Prediction, network: StoredNetwork, source: SampleSource, ranks: Ranks) -> None:
    """Print the errors and the path of a prediction, and the reasons not to trust a part of it, on the root."""
    ranks.note(*describe_doubts(prediction, network, source))
    ranks.say(*describe_prediction(prediction, source.units))


def describe_prediction(prediction: Prediction, units: Mapping[str, str]) -> list[str]:
    """Return the lines to print after a prediction: one for each target, and the path of the file."""
    lines = []
    for name, found in prediction.statistics.items():
        # One line per role: the skill on training samples does not show the skill on held-out samples.
        roles = {role: sums[name] for role, sums in prediction.by_role.items() if sums[name].count}
        for role, sums in roles.items() or [("", found)]:
            skill = TargetSkill.of(name, units.get(name, ""), sums)
            values = "1 value" if sums.count == 1 else f"{sums.count} values"
            lines.append(f"{skill.description}, {values}" + (f", {_ROLE_TEXTS[role]}" if role else ""))
    dropped = f" ({prediction.num_dropped} left out because an input is missing)"
    count = f"{prediction.num_samples} samples{dropped if prediction.num_dropped else ''}"
    return [*lines, f"prediction: {prediction.path}, {count}"]
