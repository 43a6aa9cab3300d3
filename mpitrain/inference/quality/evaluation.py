"""Evaluation of a network on samples: losses, errors, pairs and derivatives from one pass.

b  samples of a block      N  values      O  targets
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mpitrain.comm import host_array
from mpitrain.config import TrainingSection
from mpitrain.data import DataSummary, EvaluationSource, Microbatch, SampleSource, valid_rows
from mpitrain.data.dataset.batches import VirtualRankSamples
from mpitrain.data.dataset.in_memory import padded_columns
from mpitrain.inference.quality.answers import Answers, answers_of
from mpitrain.observe import ErrorSums, Findings, GridErrors, Pairs, Skill, rows_to_show
from mpitrain.observe.page.derivatives import Derivatives, DerivativeSums
from mpitrain.train import target_weights_of
from mpitrain.train.losses.array_loss import ArrayLoss, array_loss_of

Array = npt.NDArray[Any]
Names = tuple[Sequence[str], Sequence[str]]
_MOST_DERIVATIVES = 2000
_MOST_PLACED = 4_000_000  # samples of a source, up to which errors are added up by grid point


@dataclass
class TargetErrors:
    """Sums over samples for one target: losses of the network and of the training mean, and errors in its units."""

    loss: float = 0.0
    loss_of_mean: float = 0.0
    weight: float = 0.0
    errors: ErrorSums = field(default_factory=ErrorSums)

    def merge(self, other: TargetErrors) -> None:
        """Add the sums of other samples."""
        self.loss += other.loss
        self.loss_of_mean += other.loss_of_mean
        self.weight += other.weight
        self.errors.merge(other.errors)


@dataclass(frozen=True)
class Evaluation:
    """Results of evaluating a network on samples; not `is_whole` if only the first block was evaluated.

    `pairs`: some pairs of true and predicted values; `first`: those of the first samples; `places`: errors of the
    first target by grid index. `is_finite`: whether all predictions of the first target in the first block are finite.
    """

    virtual_rank: int
    targets: Sequence[TargetErrors]
    pairs: Pairs
    first: Pairs
    derivatives: DerivativeSums | None
    places: GridErrors | None
    is_finite: bool
    is_whole: bool

    def mean_of(self, sums: Literal["loss", "loss_of_mean"]) -> float | None:
        """Return the loss over all targets of the network, or of predicting the training means; None at weight 0."""
        weight = sum(one.weight for one in self.targets)
        return sum(getattr(one, sums) for one in self.targets) / weight if weight else None

    def findings(self, names: Names, units: Names, of_samples: str) -> Findings:
        """Return the results as shown on the report page; `names` and `units` are those of targets and of inputs."""
        derivatives = self.derivatives
        return Findings(
            skills=[Skill(*one) for one in zip(names[0], units[0], [one.errors for one in self.targets], strict=True)],
            of_samples=of_samples,
            pairs=self.pairs,
            first=self.first,
            derivatives=None if derivatives is None else Derivatives(derivatives, *names, *units),
            places=self.places,
        )

    def no_better(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the targets for which the network is no better than predicting their mean; () for a single target.

        Targets of weight 0 are left out.
        """
        judged = zip(names, self.targets, strict=True) if len(names) > 1 and self.is_whole else ()
        return tuple(name for name, one in judged if one.weight > 0 and one.loss >= one.loss_of_mean)


def together(parts: Sequence[Evaluation]) -> Evaluation:
    """Return the evaluation of all parts (at least one); the same order of parts gives the same bits."""
    targets = [TargetErrors() for _ in parts[0].targets]
    derivatives: DerivativeSums | None = None
    for part in parts:
        for total, more in zip(targets, part.targets, strict=True):
            total.merge(more)
        if derivatives is not None and part.derivatives is not None:
            derivatives.merge(part.derivatives)
        derivatives = derivatives or part.derivatives
    places = [part.places for part in parts if part.places is not None]
    return Evaluation(
        parts[0].virtual_rank,
        targets,
        Pairs.together([part.pairs for part in parts]),
        Pairs.together([part.first for part in parts]).first(),
        derivatives,
        GridErrors.together(places) if places else None,
        all(part.is_finite for part in parts),
        all(part.is_whole for part in parts),
    )


@dataclass(frozen=True)
class Evaluator:
    """Evaluator of a network.

    With `loss` and `mean` (O,), the loss function and target means of the training, targets and outputs are as in
    training, before the inverse output transforms; without them both are in physical units and no loss is computed.
    """

    answers: Answers
    loss: ArrayLoss | None = None
    mean: Array | None = None

    def evaluate(
        self, source: EvaluationSource, is_whole: bool, num_pairs: int = 0, num_derived: int = 0,
        with_places: bool = False,
    ) -> Evaluation | None:  # fmt: skip
        """Evaluate all blocks of `source`, or the first one if not `is_whole`; return None if it has no blocks.

        Pairs are taken from at most `num_pairs` values of each target, derivatives from at most `num_derived` samples,
        all of the first block. `with_places`: also add up errors of the first target by grid index.
        """
        total: list[TargetErrors] = []
        first: tuple[Microbatch, Array, Array] | None = None
        index = source.grid_index if isinstance(source, VirtualRankSamples) else np.empty(0, np.int64)
        errors: list[Array] = []
        for block in itertools.islice(source.blocks(), None if is_whole else 1):
            found, truth, answers = self._of_block(block)
            if first is None:
                total, first = found, (block, truth, answers)
            else:
                for one, more in zip(total, found, strict=True):
                    one.merge(more)
            if with_places and 0 < len(index) <= _MOST_PLACED:
                errors.append(answers[:, 0] - truth[:, 0])
        if first is None:
            return None
        block, truth, answers = first
        known, rows = index[: len(truth)], rows_to_show(truth, num_pairs)
        pairs = Pairs.of(truth, answers, known, rows), Pairs.first_of(truth, answers, known if num_pairs else known[:0])
        derivatives, places = self._derivatives(block, num_derived), _places(index, errors)
        is_finite = bool(np.isfinite(answers[:, 0][np.isfinite(truth[:, 0])]).all())
        return Evaluation(block.virtual_rank, total, *pairs, derivatives, places, is_finite, is_whole)

    def _of_block(self, block: Microbatch) -> tuple[list[TargetErrors], Array, Array]:
        """Return each target's sums, and truth (NaN at weight 0) and predictions (b, O, ...) in physical units."""
        targets, found = host_array(block.targets), [TargetErrors() for _ in range(block.targets.shape[1])]
        if self.loss is None or self.mean is None:
            truth, answers = targets, self.answers.physical(block.inputs)
        else:
            outputs, axes = self.answers.learnt(block.inputs), [-1, *[1] * (targets.ndim - 2)]
            mean = np.broadcast_to(self.mean.astype(targets.dtype).reshape(axes), targets.shape)
            of_model, of_mean = (self.loss.sums_by_target(some, block).tolist() for some in (outputs, mean))
            for one, (loss, weight), (loss_of_mean, _) in zip(found, of_model, of_mean, strict=True):
                one.loss, one.loss_of_mean, one.weight = loss, loss_of_mean, weight
            truth, answers = (self.answers.restore(np.ascontiguousarray(one)) for one in (targets, outputs))
        truth, weights = counted_targets(truth, host_array(block.weights))
        answers = answers.astype(np.float64)
        for number, one in enumerate(found):
            one.errors = ErrorSums.of(truth[:, number], answers[:, number] - truth[:, number], weights[:, number])
        return found, truth, answers

    def _derivatives(self, block: Microbatch, most: int) -> DerivativeSums | None:
        """Return the derivatives at some points; None for fields, for too many derivatives, or without autograd."""
        num_derivatives = block.targets.shape[1] * block.inputs.shape[1]
        if block.inputs.ndim != 2 or num_derivatives > _MOST_DERIVATIVES:
            return None
        chosen = rows_to_show(np.where(host_array(block.weights) > 0, 0.0, np.nan), most)
        try:
            return DerivativeSums.of(self.answers.jacobian(host_array(block.inputs)[chosen])) if len(chosen) else None
        except RuntimeError:  # the user's own network may not be differentiable
            return None


def evaluator_of(training: TrainingSection, model: Any, summary: DataSummary) -> Evaluator:
    """Return the evaluator of `model`, with outputs before the inverse output transforms, and its training's loss."""
    weights = target_weights_of(training, summary.target_names)
    loss = array_loss_of(training.loss_function, model, weights)
    return Evaluator(answers_of(model, summary.num_validation_samples or 0), loss, summary.target_mean)


def samples_of_chunk(source: SampleSource, number: int, input_mean: Array) -> tuple[int, VirtualRankSamples]:
    """Return the number of selected samples of a chunk, and the usable ones. Raises DataError."""
    samples = source.read(source.chunks[number])
    usable = samples.take(np.flatnonzero(valid_rows(samples)))
    padded = padded_columns(usable, input_mean, input_mean.dtype)
    return len(samples), VirtualRankSamples(0, *padded, usable.grid_index)


def counted_targets(targets: Array, weights: Array) -> tuple[Array, Array]:
    """Return targets (b, O, ...), NaN where the weight is 0, and weights of the same shape; both float64."""
    whole = np.broadcast_to(weights.astype(np.float64), targets.shape)
    return np.where(whole > 0, targets, np.nan).astype(np.float64), whole


def _places(index: npt.NDArray[np.int64], errors: Sequence[Array]) -> GridErrors | None:
    """Return the errors (b,) or (b, J, I) of samples added up by grid index; None without errors."""
    if not errors:
        return None
    values = np.concatenate(errors)
    inside = index if values.ndim == 1 else np.tile(np.arange(values[0].size), len(values))
    return GridErrors.of(inside, values.reshape(-1))
