"""Losses of simple predictors on a network's validation samples: linear regression, climatology, persistence.

N  rows: samples, or the points of fields     F  inputs     O  targets     G  groups: grid points (by month)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.comm import FixedTreeReducer, Ranks, VirtualRanks, host_array
from mpitrain.config import TrainingSection
from mpitrain.data import Dataset, DataSummary, EvaluationSource, Microbatch, SampleSource, places_of_levels
from mpitrain.data.dataset.batches import VirtualRankSamples
from mpitrain.data.dataset.linear_fit import LinearRegression
from mpitrain.data.describe.times import read_times
from mpitrain.data.selection.expressions.clock import clock_values
from mpitrain.errors import DataError
from mpitrain.train import target_weights_of
from mpitrain.train.losses.array_loss import ArrayLoss, array_loss_of

# Limits of the number of sums per virtual rank, and of the products for adding them up.
_MOST_SUMS, _MOST_PRODUCTS = 4_000_000, 2e10
_LAG = re.compile(r"\[(?:.*, *)?(?:time|row)-(\d+)\]$")
_MONTHS = 12
_FEWEST_A_GROUP, _FEWEST_KNOWN = 2, 0.5
Answers = Callable[[Microbatch, npt.NDArray[np.int64]], npt.NDArray[Any]]
"""Returns a baseline's predictions (b, O, ...), float64, for samples with these grid indices (b,) of the source."""


@dataclass(frozen=True)
class Levels:
    """Time levels of a source: points in each (1 for fields), and months (T,) from 1, None if unknown.

    `have_places`: the points of a level are at the same places at all times, unlike those of a moving profile.
    """

    points_a_level: int = 1
    months: npt.NDArray[np.int64] | None = None
    have_places: bool = True


def levels_of(source: SampleSource, ranks: Ranks) -> Levels:
    """Return the time levels of `source`. Collective."""
    rows, columns = source.grid_shape
    have_places = ranks.on_root(lambda: _have_places(source))
    return Levels(1 if source.kind == "fields" else rows * columns, ranks.on_root(lambda: _months(source)), have_places)


def _have_places(source: SampleSource) -> bool:
    """Tell whether the points of a level are at the same places at all times."""
    if source.kind == "fields":
        return True
    try:
        places = places_of_levels(source)
    except DataError:  # unreadable places are no error: nothing else needs them
        return True
    finally:
        source.close()
    return places is None or len(np.unique(places, axis=0)) == 1


def _months(source: SampleSource) -> npt.NDArray[np.int64] | None:
    """Return the month of each time level; None if a file lacks dates."""
    months = []
    for number, record in enumerate(source.files):
        file = source.handle(number)
        try:
            found = clock_values("month", *read_times(record.time, file)[:2])
        except DataError:
            return None
        if len(found) != record.num_times or not np.isfinite(found).all():
            return None
        months.append(found.astype(np.int64))
    source.close()
    return np.concatenate(months)


def baseline_losses(
    training: TrainingSection, dataset: Dataset, model: Any, levels: Levels, virtual_ranks: VirtualRanks,
    ranks: Ranks,
) -> dict[str, float]:  # fmt: skip
    """Return the losses of the applicable baselines by name, with the network's loss function. Collective.

    Baselines are fitted to the training samples and evaluated on the held-out samples, or on the training samples if
    none are held out. Returns {} for samples that are read again in each epoch, and for `reference` semantics.
    """
    known = [one for one in dataset.evaluation(held_out=False) if isinstance(one, VirtualRankSamples)]
    judged = dataset.evaluation(held_out=dataset.summary.holds_out)
    reducer = FixedTreeReducer(ranks.cpu, virtual_ranks)
    loss = array_loss_of(training.loss_function, model, target_weights_of(training, dataset.summary.target_names))
    found: dict[str, float] = {}
    if len(known) != len(dataset.evaluation(held_out=False)) or dataset.summary.moments is None:
        return found
    for name, answers in _baselines(known, judged, dataset.summary, levels, reducer).items():
        sums = np.stack([_losses(loss, answers, source) for source in judged])
        total, weight = reducer.reduce(sums).tolist()
        if weight:
            found[name] = total / weight
    return found


def _baselines(
    training: Sequence[VirtualRankSamples], judged: Sequence[EvaluationSource], summary: DataSummary, levels: Levels,
    reducer: FixedTreeReducer,
) -> dict[str, Answers]:  # fmt: skip
    found: dict[str, Answers | None] = {"persistence": _persistence(summary)}
    shape = training[0].padded_targets.shape[2:]
    num_rows = summary.num_training_samples * int(np.prod(shape, dtype=np.int64))
    size = len(summary.input_names) + 1
    num_sums = (size + 1) * size * len(summary.target_names)
    if num_sums <= _MOST_SUMS and num_rows * num_sums <= _MOST_PRODUCTS:
        found["linear regression"] = _linear(training, summary, reducer)
    num_places = levels.points_a_level * int(np.prod(shape, dtype=np.int64))
    if num_places > 1 and levels.have_places:
        found["climatology by place"] = _climatology(training, judged, summary, levels, num_places, 1, reducer)
        if levels.months is not None and len(np.unique(levels.months)) > 1:
            name = "climatology by place and month"
            found[name] = _climatology(training, judged, summary, levels, num_places, _MONTHS, reducer)
    return {name: answers for name, answers in found.items() if answers is not None}


def _persistence(summary: DataSummary) -> Answers | None:
    """Return predictions equal to each target's most recent lagged input; None if a target has no such input."""
    columns: Any = [_newest_lag(target, summary.input_names) for target in summary.target_names]
    if any(one is None for one in columns):
        return None
    return lambda block, _: host_array(block.inputs)[:, columns].astype(np.float64)


def _newest_lag(target: str, input_names: Sequence[str]) -> int | None:
    found = []
    for number, name in enumerate(input_names):
        lag = _LAG.search(name)
        if lag is not None and _without_lag(name) == _without_lag(target):
            found.append((int(lag[1]), number))
    return min(found)[1] if found else None


def _without_lag(name: str) -> str:
    return re.sub(r"(, *)?(time|row)-\d+(?=\])", "", name).removesuffix("[]")


def _linear(training: Sequence[VirtualRankSamples], summary: DataSummary, reducer: FixedTreeReducer) -> Answers:
    """Return the predictions of a least-squares fit of each target to the inputs at the same point."""
    regression = LinearRegression(training, summary.normalization, reducer)
    coefficients = regression.fit()  # (F + 1, O)
    return lambda block, _: np.moveaxis(regression.known(block) @ coefficients, -1, 1)


def _climatology(
    training: Sequence[VirtualRankSamples], judged: Sequence[EvaluationSource], summary: DataSummary, levels: Levels,
    num_places: int, num_months: int, reducer: FixedTreeReducer,
) -> Answers | None:  # fmt: skip
    """Return the training mean at each grid point (and month) as predictions; without samples there, the overall mean.

    None if groups have fewer than 2 samples on average, if most evaluated rows are in groups without samples, or if
    there are too many groups.
    """
    num_targets = len(summary.target_names)
    if num_places * num_months * num_targets * 2 > _MOST_SUMS:
        return None
    mean = summary.target_mean

    def groups(block: Microbatch, grid_index: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        level, place = np.divmod(grid_index, levels.points_a_level)
        month = levels.months[level] - 1 if levels.months is not None and num_months > 1 else np.zeros_like(level)
        inside = np.arange(num_places // levels.points_a_level)  # the points of a field
        own = (month * num_places + place)[:, None] + inside if len(inside) > 1 else month * num_places + place
        return np.asarray(own.reshape(-1))

    def sums(source: VirtualRankSamples) -> npt.NDArray[Any]:
        total = np.zeros((num_months * num_places, num_targets, 2))
        for block, grid_index in _with_places(source):
            targets, weights = _rows(block.targets), _rows(_spread(block.weights, block.targets))
            np.add.at(total, groups(block, grid_index), np.stack([targets * weights, weights], axis=2))
        return total.reshape(-1)

    total = reducer.reduce(np.stack([sums(source) for source in training])).reshape(-1, num_targets, 2)
    count = total[..., 1]
    num_known = int((count.sum(1) > 0).sum()) * levels.points_a_level / num_places  # groups, or equivalent fields
    if summary.num_training_samples < _FEWEST_A_GROUP * num_known:
        return None  # means of about one sample are not a climatology
    is_known = count.sum(1) > 0
    shares = [_share_of(source, lambda block, index: is_known[groups(block, index)]) for source in judged]
    num_judged_known, num_judged = reducer.reduce(np.stack(shares)).tolist()
    if num_judged_known < _FEWEST_KNOWN * num_judged:
        return None  # it would mostly be the overall mean
    means = np.where(count > 0, total[..., 0] / np.maximum(count, 1e-300), mean)
    return lambda block, grid_index: _like_targets(means[groups(block, grid_index)], block.targets)


def _share_of(
    source: EvaluationSource, flags: Callable[[Microbatch, npt.NDArray[np.int64]], npt.NDArray[np.bool_]]
) -> npt.NDArray[Any]:  # fmt: skip
    """Return the number of flagged rows and of all rows of a source (2,), float64."""
    assert isinstance(source, VirtualRankSamples)
    found = [flags(block, grid_index) for block, grid_index in _with_places(source)]
    return np.array([sum(int(one.sum()) for one in found), sum(one.size for one in found)], dtype=np.float64)


def _losses(loss: ArrayLoss, answers: Answers, source: EvaluationSource) -> npt.NDArray[Any]:
    """Return the sums (2,) of losses and weights, float64."""
    assert isinstance(source, VirtualRankSamples)
    sums = np.zeros(2)
    for block, grid_index in _with_places(source):
        found = answers(block, grid_index).astype(host_array(block.targets).dtype)
        sums += loss.sums_by_target(found, block).sum(axis=0)
    return sums


def _with_places(source: VirtualRankSamples) -> Iterator[tuple[Microbatch, npt.NDArray[np.int64]]]:
    """Yield the blocks of a source with the grid indices (b,) of their samples."""
    first = 0
    for block in source.blocks():
        yield block, source.grid_index[first : first + len(block.targets)]
        first += len(block.targets)


def _spread(weights: Any, targets: Any) -> npt.NDArray[Any]:
    return np.broadcast_to(host_array(weights), targets.shape)


def _rows(values: Any) -> npt.NDArray[Any]:
    """Return (b, C, ...) as rows (N, C), float64."""
    array = host_array(values)
    return np.moveaxis(array, 1, -1).reshape(-1, array.shape[1]).astype(np.float64)


def _like_targets(rows: npt.NDArray[Any], targets: Any) -> npt.NDArray[Any]:
    """Return rows (N, O) in the shape of targets (b, O, ...)."""
    others = (targets.shape[0], *targets.shape[2:])
    return np.moveaxis(rows.reshape(*others, targets.shape[1]), -1, 1)
