"""How good a network is, beside its loss: answers, errors by target, what always answering the mean would reach.

N  samples      O  targets      C  chunks of files
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from mpitrain.comm.ranks import Ranks
from mpitrain.comm.reduction import FixedTreeReducer
from mpitrain.comm.virtual_ranks import VirtualRanks
from mpitrain.config import RunConfig
from mpitrain.data.dataset.batches import EvaluationSource, Slice, VirtualRankSamples
from mpitrain.data.dataset.dataset import Dataset, DataSummary
from mpitrain.data.dataset.exchange import open_source_on_root
from mpitrain.data.dataset.in_memory import padded_tensors
from mpitrain.data.samples import valid_rows
from mpitrain.data.selection.settings import Selection, expand_paths, selection_of
from mpitrain.data.selection.source import SampleSource
from mpitrain.errors import DataError, TrainingError
from mpitrain.models.output_transforms import answering_physically, physical_targets
from mpitrain.observe.summary import TargetSkill, TestSkill
from mpitrain.train.losses import WeightedLoss, loss_of, target_weights_of

DoubleArray = npt.NDArray[np.float64]


@torch.no_grad()
def check_predictions(model: nn.Module, sources: Sequence[EvaluationSource]) -> None:
    """Raise TrainingError where predictions of the first target are not finite, for some of this rank's own samples."""
    model.eval()
    for block in (block for source in sources for block in itertools.islice(source.blocks(), 1)):
        counts = block.weights.expand_as(block.targets)[:, 0] > 0
        with answering_physically(model):
            check_finite(model(block.inputs)[:, 0][counts].cpu().double().numpy())


def check_finite(prediction: npt.NDArray[Any]) -> None:
    """Raise TrainingError for predictions that are not finite."""
    if not np.isfinite(prediction).all():
        # The loss of the last step is the one before it: without validation nobody has seen these weights.
        raise TrainingError(
            "the trained weights give predictions that are not finite; lower training.optimizer.learning_rate or look "
            "for extreme inputs"
        )


def mean_predictor_loss(
    config: RunConfig, dataset: Dataset, model: nn.Module, virtual_ranks: VirtualRanks, ranks: Ranks
) -> float | None:
    """Return the loss of always answering the training means, over the samples that losses are over. Collective.

    It is measured and weighed as the losses are. None where that would take one more pass over the files.
    """
    weights = target_weights_of(config.training, dataset.summary.target_names)
    output_std: torch.Tensor = getattr(model, "output_std", torch.ones(()))
    if config.training.loss_function == "mse":
        return dataset.mean_predictor_mse(output_std, ranks, weights)
    if config.data.streaming and not dataset.summary.holds_out:
        return None
    loss = loss_of(config.training.loss_function, model, weights)
    mean = torch.from_numpy(dataset.summary.target_mean).to(ranks.device, output_std.dtype)
    sources = dataset.evaluation(held_out=dataset.summary.holds_out)
    sums = torch.stack([_losses_of_mean(loss, mean, source) for source in sources])
    total, weight = FixedTreeReducer(ranks.tensors, virtual_ranks).reduce(sums).tolist()
    return float(total / weight) if weight else None


def _losses_of_mean(loss: WeightedLoss, mean: torch.Tensor, source: EvaluationSource) -> torch.Tensor:
    """Return the sums (2,) of losses and weights of always answering `mean` (O,), float64."""
    sums = torch.zeros(2, dtype=torch.float64, device=mean.device)
    for block in source.blocks():
        sums += loss.double_sums(mean.view(-1, *[1] * (block.targets.ndim - 2)).expand_as(block.targets), block)
    return sums


@dataclass(frozen=True)
class Judge:
    """Adds up the errors of a model and of the training means, each target for itself, measured as the losses are."""

    model: nn.Module
    loss: WeightedLoss
    summary: DataSummary

    @torch.no_grad()
    def sums(self, sources: Sequence[EvaluationSource]) -> torch.Tensor:
        """Return sums over all samples (O, 8), float64, on the CPU.

        Loss, loss of the mean, weight; in physical units weight, error, squared error, and the truth less the mean and
        its square.
        """
        self.model.eval()
        total = torch.zeros((len(self.summary.target_names), 8), dtype=torch.float64)
        for source in sources:
            for block in source.blocks():
                total += self._of_block(block).cpu()
        return total

    def _of_block(self, block: Slice) -> torch.Tensor:
        targets, axes = block.targets, [-1, *[1] * (block.targets.ndim - 2)]
        mean = torch.from_numpy(self.summary.target_mean).to(targets).view(axes).expand_as(targets)
        outputs = self.model(block.inputs)
        of_model, of_mean = (self.loss.sums_by_target(answers, block) for answers in (outputs, mean))
        truth, answers, middle = (
            physical_targets(self.model, one).double() for one in (targets, outputs, mean)
        )  # (b, O, ...)
        weights = block.weights.double().expand_as(truth)
        error, distance = answers - truth, truth - middle
        others = [axis for axis in range(truth.ndim) if axis != 1]
        columns = (weights, weights * error, weights * error**2, weights * distance, weights * distance**2)
        physical = torch.stack([column.sum(others) for column in columns], dim=1)
        return torch.cat([of_model[:, :1], of_mean[:, :1], of_model[:, 1:], physical], dim=1)


def judge_of(config: RunConfig, model: nn.Module, summary: DataSummary) -> Judge:
    """Return what judges `model`, which answers what it learns."""
    weights = target_weights_of(config.training, summary.target_names)
    return Judge(model, loss_of(config.training.loss_function, model, weights), summary)


def no_better_targets(
    config: RunConfig, dataset: Dataset, model: nn.Module, virtual_ranks: VirtualRanks, ranks: Ranks
) -> tuple[str, ...]:
    """Name those of several targets that count for which always answering the mean is as good. Collective.

    It is found over the held-out samples; none is named where there are none.
    """
    summary = dataset.summary
    if config.semantics == "reference" or len(summary.target_names) < 2 or not summary.holds_out:
        return ()
    judge = judge_of(config, model, summary)
    own = torch.stack([judge.sums([source]).flatten() for source in dataset.evaluation()]).to(ranks.device)
    total = FixedTreeReducer(ranks.tensors, virtual_ranks).reduce(own).view(len(summary.target_names), -1)
    pairs = zip(summary.target_names, total.tolist(), strict=True)
    return tuple(name for name, (loss, of_mean, weight, *_) in pairs if weight > 0 and loss >= of_mean)


def open_test_files(config: RunConfig, trained_on: SampleSource, ranks: Ranks) -> SampleSource | None:
    """Open the files of `data.test_path` before the training, None where there are none. Collective.

    Raises DataError, on all ranks, where one cannot serve or is trained on.
    """
    if not config.data.test_entries:
        return None
    selection = selection_of(config, config.data.test_entries, without_held_out=True, to_learn=True)
    selection = replace(selection, max_patterns=None, thin_fraction=1.0, units=trained_on.units)
    ranks.on_root(lambda: _check_apart(selection, trained_on))
    return open_source_on_root(selection, ranks)


def _check_apart(selection: Selection, trained_on: SampleSource) -> None:
    known = {record.path.resolve() for record in trained_on.files}
    both = [path for path in expand_paths(selection.files) if path.resolve() in known]
    if both:
        raise DataError(
            f"{both[0]}: is in data.test_path and in data.data_path or data.validation_path; a test is of files that "
            "nothing was trained or chosen by"
        )


def skill_on_files(judge: Judge, source: SampleSource, ranks: Ranks) -> TestSkill:
    """Return how good a model is on all samples of `source`, the same bits on any number of ranks. Collective.

    Its targets must be what is learnt. Raises DataError, on all ranks, where a file cannot be read or has no sample.
    """
    own = ranks.on_all_ranks(
        lambda: {c: _of_chunk(judge, source, c, ranks) for c in range(ranks.rank, len(source.chunks), ranks.world_size)}
    )
    source.close()
    found = {c: sums for part in ranks.gather_object(own) for c, sums in part.items()}
    counts = np.sum([found[c][0] for c in range(len(found))] or [(0, 0)], axis=0)
    ranks.on_all_ranks(lambda: _check_some(source, int(counts[0]), int(counts[1])))
    total = np.sum([found[c][1] for c in range(len(found))], axis=0)  # (O, 8)
    weight = float(total[:, 2].sum())
    return TestSkill(
        files=tuple(str(one.path) for one in source.files),
        num_samples=int(counts[1]),
        num_dropped=int(counts[0] - counts[1]),
        loss=float(total[:, 0].sum() / weight),
        mean_predictor_loss=float(total[:, 1].sum() / weight),
        targets=tuple(
            _skill(name, source.units.get(name, ""), *sums[3:])
            for name, sums in zip(source.target_names, total.tolist(), strict=True)
        ),
    )


def _of_chunk(judge: Judge, source: SampleSource, chunk: int, ranks: Ranks) -> tuple[tuple[int, int], DoubleArray]:
    """Return a chunk's numbers of selected and of usable samples, and its sums (O, 8)."""
    samples, mean = source.read(source.chunks[chunk]), judge.summary.normalization.mean
    kept = samples.take(np.flatnonzero(valid_rows(samples)))
    padded = padded_tensors(kept, mean, ranks.device, mean.dtype)
    sums = judge.sums([VirtualRankSamples(0, *padded, kept.grid_index)])
    return (len(samples), len(kept)), sums.numpy()


def _check_some(source: SampleSource, num_selected: int, num_usable: int) -> None:
    source.check_selection(num_selected, [1] * (len(source.input_names) + len(source.target_names)))
    if num_usable == 0:
        raise DataError(f"{source.files[0].path}: all {num_selected} selected samples hold a NaN or a fill value")


def _skill(
    name: str, units: str, weight: float, error: float, squared_error: float, distance: float, squared_distance: float
) -> TargetSkill:
    bias = error / weight if weight else math.nan
    variance = squared_distance - distance**2 / weight if weight else 0.0
    r2 = 1 - squared_error / variance if variance > 0 else None
    return TargetSkill(name, units, bias, math.sqrt(squared_error / weight) if weight else math.nan, r2)
