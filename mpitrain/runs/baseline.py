"""What a network must beat: the error of answering the mean.

V  virtual ranks      O  targets
"""

from __future__ import annotations

import torch
from torch import nn

from mpitrain.comm.reduction import FixedTreeReducer
from mpitrain.comm.session import Session
from mpitrain.comm.virtual_ranks import VirtualRanks
from mpitrain.data.dataset.batches import EvaluationSource
from mpitrain.data.dataset.in_memory import TrainingData
from mpitrain.data.streaming.dataset import StreamedData


def mean_predictor_mse(
    data: TrainingData | StreamedData, session: Session, virtual_ranks: VirtualRanks, model: nn.Module
) -> float | None:
    """Return the squared error of answering the training means, over the samples that the losses are over. Collective.

    Errors are measured as the losses of `model` are. None where that would take one more pass over the files.
    """
    summary = data.summary
    std = getattr(model, "output_std", torch.ones(())).double()
    if isinstance(data, StreamedData):
        return None if data.is_area_weighted else _from_moments(data, std.cpu())
    sources = data.evaluation_sources(held_out=summary.num_validation_samples > 0)
    mean = torch.from_numpy(summary.target_mean).to(session.device)
    sums = torch.stack([_squared_errors(source, mean, std) for source in sources])
    total, weight = FixedTreeReducer(session.data, virtual_ranks).reduce(sums).tolist()
    return float(total / weight) if weight else None


def _from_moments(data: StreamedData, std: torch.Tensor) -> float | None:
    """Return the same from what the first pass over the files has measured: the squares about another mean."""
    summary, census = data.summary, data.census
    found = census.validation if summary.num_validation_samples else census.training
    count, mean, m2 = (part[len(summary.input_names) :] for part in (found.count, found.mean, found.m2))
    squares = torch.from_numpy(m2 + count * (mean - summary.target_mean) ** 2) / std**2
    return float(squares.sum() / count.sum()) if count.sum() else None


def _squared_errors(source: EvaluationSource, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """Return the weighted sum of squared errors of `mean` (O,), and the sum of weights (2,), float64."""
    sums = torch.zeros(2, dtype=torch.float64, device=mean.device)
    for block in source.blocks():
        axes = [-1, *[1] * (block.targets.ndim - 2)]
        errors = (block.targets.double() - mean.view(axes)) / (std.view(axes) if std.ndim else std)
        weights = block.weights.double().expand_as(errors)
        sums += torch.stack([(weights * errors**2).sum(), weights.sum()])
    return sums
