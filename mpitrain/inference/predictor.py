"""Predictions of a whole source of samples, in parallel and chunk by chunk, to one NetCDF file.

N  samples of a chunk   F  inputs   O  targets   H, W  rows and columns of a field   P  ranks   C  chunks

Every chunk is computed by itself, by one rank, and written in the source's order: the file's numbers are the same on
any number of ranks. A rank holds at most one chunk; the root holds a second one, which it has received.
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
from mpitrain.inference.arithmetic import Arithmetic, Array, Choice, with_means
from mpitrain.inference.ensemble import arithmetic_of
from mpitrain.inference.other_formats import NETCDF as NETCDF
from mpitrain.inference.other_formats import layout_in as layout_in
from mpitrain.inference.output_grid import Layout
from mpitrain.inference.rows import PredictionSink, RowLayout, row_layout_of
from mpitrain.inference.rows import check_prediction as check_prediction  # for the beginning of a run
from mpitrain.models import StoredNetwork
from mpitrain.observe import ErrorSums, TargetSkill

# Of other data from the same source, a few values always lie beyond the largest and smallest seen before.
_NOTED_SHARE = 0.001
CHUNK_BYTES = 2 * 2**20
_ROLE_WORDS = {
    "training": "trained on", "validation": "held out for validation", "test": "kept for a test",
    "unused": "not used in training",
}  # fmt: skip


@dataclass(frozen=True)
class Prediction:
    """What was written: the statistics of each target that the data has, over all samples; numbers of samples.

    `outside` is the share of each input's values that lie outside of what the network was trained on, by name.
    `by_role` are the statistics by what the samples were used for in training, where that is known. `beyond_data` are
    for each target the values predicted where the data has none, and all that are predicted; empty without targets.
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
    """Predict for every selected sample of `source`, and write `path` on the root, whole or not at all. Collective.

    The ending of `path` is that of a format (see `check_format`); CSV and Parquet have a row for each sample.
    `with_jacobian` adds the derivatives of points. Points with a missing input are left out and
    counted; in fields the input's mean replaces it. `arithmetic`: see `choose_arithmetic`; the file says which it was.
    `written_as`: see `output_grid.Layout`; `roles`: what the samples were used for, on the root. Raises DataError,
    OutputError, or UserError for a grid that the data lacks, on all ranks, with nothing left behind.
    """
    ranks.on_all_ranks(lambda: check_fit(network, source))
    layout = row_layout_of(network, source, with_jacobian)
    written_as = ranks.on_all_ranks(lambda: layout_in(path, written_as, source.kind))
    num_ranks, rank = ranks.world_size, ranks.rank
    if ranks.device.type != "cpu":
        network.module.to(ranks.device)
    chosen = ranks.on_all_ranks(lambda: arithmetic_of(network, arithmetic, source.num_points))
    ranks.set_torch_threads()  # where the arithmetic is torch's
    sink = PredictionSink(network, source, path, layout, chosen.words, written_as, roles)
    try:
        ranks.on_root(sink.open)
        for first in range(0, len(source.chunks), num_ranks):
            rows = ranks.on_all_ranks(partial(_rows_of, network, chosen, source, first + rank, layout, sink))
            _send_in_order(rows, source.chunks[first : first + num_ranks], sink, ranks)
        num_dropped = sum(ranks.gather_object(sink.num_dropped))
        counts = np.sum(ranks.gather_object(sink.num_outside), axis=0)  # (2, F): outside, all
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
    inputs = with_means(samples.inputs.astype(network.dtype), network.input_mean)
    answers = arithmetic.evaluate(inputs, layout.with_jacobian)
    expected = (len(samples), layout.num_outputs, *layout.field_shape)
    if answers[0].shape != expected:
        raise DataError(f"the model returns shape {answers[0].shape}, the targets have {expected}")
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
    rows: Array, chunks: Sequence[SampleChunk], sink: PredictionSink, ranks: Ranks
) -> None:  # fmt: skip
    """Let the root write the ranks' rows, one rank's after the other, each of its own chunk. Collective."""
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
    return ranks.on_root(lambda: open_source(selection, CHUNK_BYTES, num_predicted, ranks.watch.note_file))


def open_data(config: RunConfig, files: Sequence[str]) -> SampleSource | None:
    """Return the source of what a run's settings select of `files`, None where they cannot be read any more."""
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
    """Return a notice for the targets that the data has in part, of predictions where it has none."""
    targets: dict[tuple[int, int], list[str]] = {}
    for name, counts in prediction.beyond_data.items():
        targets.setdefault(counts, []).append(name)
    of_land, advice = (" (as over land)", "; domain.mask_mode=ocean leaves them out") if may_have_land else ("", "")
    return [
        f"{', '.join(names)}: {number:,} of {all_:,} predictions are where the data has no value{of_land}: nothing "
        f"tells how good they are{advice}"
        for (number, all_), names in targets.items()
        if 0 < number < all_
    ]


def _describe_constant(network: StoredNetwork) -> list[str]:
    """Return a notice for each input that was one and the same number in all training samples."""
    named = zip(network.description.input_names, network.description.input_ranges, strict=False)
    return [
        f"input '{name}': {float(text.split()[0]):.6g} in all training samples: what it does to predictions, and "
        "derivatives by it, come from the first random weights"
        for name, text in named
        if len(set(map(float, text.split()))) == 1
    ]


def _describe_outside(prediction: Prediction, network: StoredNetwork) -> list[str]:
    """Return a notice for each input that has more than a few values outside of the trained range."""
    ranges = dict(zip(network.description.input_names, network.description.input_ranges, strict=False))
    return [
        f"input '{name}': {100 * share:.3g} % of its values lie outside of the trained range, from "
        f"{' to '.join(f'{float(word):.6g}' for word in ranges.get(name, '').split())}; predictions there are a guess"
        for name, share in prediction.outside.items()
        if share > _NOTED_SHARE
    ]


def tell_prediction(prediction: Prediction, network: StoredNetwork, source: SampleSource, ranks: Ranks) -> None:
    """Let the root print what was predicted, and the reasons not to trust a part of it."""
    ranks.note(*describe_doubts(prediction, network, source))
    ranks.say(*describe_prediction(prediction, source.units))


def describe_prediction(prediction: Prediction, units: Mapping[str, str]) -> list[str]:
    """Return the lines to print after a prediction: one for each target, and the path of the file."""
    lines = []
    for name, found in prediction.statistics.items():
        # Not one figure over both: skill on training samples says nothing about skill on held-out ones.
        roles = {role: sums[name] for role, sums in prediction.by_role.items() if sums[name].count}
        for role, sums in roles.items() or [("", found)]:
            skill = TargetSkill.of(name, units.get(name, ""), sums)
            values = "1 value" if sums.count == 1 else f"{sums.count} values"
            lines.append(f"{skill.words}, {values}" + (f", {_ROLE_WORDS[role]}" if role else ""))
    dropped = f" ({prediction.num_dropped} with an input that is no measurement are left out)"
    count = f"{prediction.num_samples} samples{dropped if prediction.num_dropped else ''}"
    return [*lines, f"prediction: {prediction.path}, {count}"]
