"""Measures of a network beside its loss: errors by target, and the loss of predicting the targets' mean.

b  samples      O  targets
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.comm import FixedTreeReducer, Ranks, VirtualRanks, host_array
from mpitrain.config import TrainingSection
from mpitrain.data import Dataset, DataSummary, EvaluationSource, Microbatch
from mpitrain.inference.quality.answers import Answers, answers_of
from mpitrain.train import target_weights_of
from mpitrain.train.losses.array_loss import ArrayLoss, array_loss_of

DoubleArray = npt.NDArray[np.float64]


def mean_predictor_loss(
    training: TrainingSection, dataset: Dataset, model: Any, virtual_ranks: VirtualRanks, ranks: Ranks,
    is_streamed: bool,
) -> float | None:  # fmt: skip
    """Return the loss of predicting the training means, over the samples of the reported loss. Collective.

    It is measured and weighed as the losses are. None where that would take one more pass over the files of a dataset
    that `is_streamed`.
    """
    weights = target_weights_of(training, dataset.summary.target_names)
    output_std = host_array(dict(model.named_buffers()).get("output_std", np.ones(())))
    if training.loss_function.is_squared_error:
        return dataset.mean_predictor_mse(output_std, ranks, weights)
    if is_streamed and not dataset.summary.holds_out:
        return None
    loss = array_loss_of(training.loss_function, model, weights)
    mean = dataset.summary.target_mean.astype(host_array(dataset.summary.normalization.mean).dtype)
    sources = dataset.evaluation(held_out=dataset.summary.holds_out)
    sums = np.stack([_losses_of_mean(loss, mean, source) for source in sources])
    total, weight = FixedTreeReducer(ranks.cpu, virtual_ranks).reduce(sums).tolist()
    return float(total / weight) if weight else None


def _losses_of_mean(loss: ArrayLoss, mean: npt.NDArray[Any], source: EvaluationSource) -> DoubleArray:
    """Return the sums (2,) of losses and weights of predicting `mean` (O,), float64."""
    sums = np.zeros(2)
    for block in source.blocks():
        sums += loss.sums_by_target(_spread_over(mean, block), block).sum(axis=0)
    return sums


def _spread_over(mean: npt.NDArray[Any], block: Microbatch) -> npt.NDArray[Any]:
    """Return `mean` (O,) as answers for all targets of a block."""
    return np.broadcast_to(mean.reshape(-1, *[1] * (block.targets.ndim - 2)), block.targets.shape)


@dataclass(frozen=True)
class Judge:
    """Adds up the errors of a model and of the training means, each target for itself, measured as the losses are."""

    answers: Answers
    loss: ArrayLoss
    summary: DataSummary

    def sums(self, sources: Sequence[EvaluationSource]) -> DoubleArray:
        """Return sums over all samples (O, 8), float64.

        Loss, loss of the mean, weight; in physical units weight, error, squared error, and the truth less the mean and
        its square.
        """
        total = np.zeros((len(self.summary.target_names), 8))
        for source in sources:
            for block in source.blocks():
                total += self._of_block(block)
        return total

    def _of_block(self, block: Microbatch) -> DoubleArray:
        targets, outputs = host_array(block.targets), self.answers.learnt(block.inputs)
        mean = _spread_over(self.summary.target_mean.astype(targets.dtype), block)
        of_model, of_mean = (self.loss.sums_by_target(answers, block) for answers in (outputs, mean))
        truth, answers, middle = (
            self.answers.restore(np.ascontiguousarray(one)).astype(np.float64) for one in (targets, outputs, mean)
        )  # (b, O, ...)
        weights = np.broadcast_to(host_array(block.weights).astype(np.float64), truth.shape)
        error, distance = answers - truth, truth - middle
        others = tuple(axis for axis in range(truth.ndim) if axis != 1)
        columns = (weights, weights * error, weights * error**2, weights * distance, weights * distance**2)
        physical = np.stack([column.sum(others) for column in columns], axis=1)
        return np.concatenate([of_model[:, :1], of_mean[:, :1], of_model[:, 1:], physical], axis=1)


def judge_of(training: TrainingSection, model: Any, summary: DataSummary) -> Judge:
    """Return the judge of `model`, whose outputs are as they are learnt."""
    weights = target_weights_of(training, summary.target_names)
    loss = array_loss_of(training.loss_function, model, weights)
    return Judge(answers_of(model, summary.num_validation_samples or 0), loss, summary)


def no_better_targets(
    training: TrainingSection, dataset: Dataset, model: Any, virtual_ranks: VirtualRanks, ranks: Ranks
) -> tuple[str, ...]:
    """Return the targets for which the model is no better than predicting their mean. Collective.

    It is found over the held-out samples. Empty where there are none, and for a single target. A target of weight 0 is
    not judged.
    """
    summary = dataset.summary
    if len(summary.target_names) < 2 or not summary.holds_out:
        return ()
    judge = judge_of(training, model, summary)
    own = np.stack([judge.sums([source]).reshape(-1) for source in dataset.evaluation()])
    total = FixedTreeReducer(ranks.cpu, virtual_ranks).reduce(own).reshape(len(summary.target_names), -1)
    pairs = zip(summary.target_names, total.tolist(), strict=True)
    return tuple(name for name, (loss, of_mean, weight, *_) in pairs if weight > 0 and loss >= of_mean)
