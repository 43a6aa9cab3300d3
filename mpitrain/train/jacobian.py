"""The mean Jacobian over fixed samples, computed during the training: it stops changing when the network does.

n  samples of one virtual rank      V  virtual ranks      F  input features      O  targets
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from mpitrain.comm import Ranks, VirtualRanks, mark_agreed
from mpitrain.comm.reduction import combine_in_tree
from mpitrain.data import EvaluationSource
from mpitrain.errors import ConfigError, TrainingError
from mpitrain.models import input_jacobian, physical_outputs
from mpitrain.models.dense_module import torch_view

MOST_SAMPLES = 4096


class JacobianWatch:
    """Computes the mean Jacobian over the same samples each time: the first 4096 / V of each virtual rank."""

    def __init__(
        self, model: nn.Module, sources: Sequence[EvaluationSource], ranks: Ranks, layout: VirtualRanks
    ) -> None:
        """Keep the first samples of `sources`, one of each virtual rank of this rank (one per rank in `reference`)."""
        self._model, self._ranks = model, ranks
        self._counts, self._num_parts = layout.counts, layout.num_virtual_ranks
        rows = max(1, MOST_SAMPLES // self._num_parts)
        self._samples = [_first_inputs(source, rows) for source in sources]

    def check_points(self) -> None:
        """Raise ConfigError if samples are fields."""
        if any(own is not None and own.dim() > 2 for own in self._samples):
            raise ConfigError(
                "training.track_jacobian=true: not available for fields, which have a derivative by each point; set it "
                "to false (and training.jacobian_tolerance to null)"
            )

    def mean(self) -> list[float]:
        """Return the mean Jacobian (O, F) as a list of O F numbers, row by row, the same on all ranks. Collective.

        The bits do not depend on the number of ranks. Raises TrainingError, on all ranks, if it is not finite.
        """
        own = torch.stack([self._sum(inputs) for inputs in self._samples])
        gathered = self._ranks.cpu.all_gather(own, self._counts)[: self._num_parts]
        # Padded with zeros to a power of two, which the number of ranks (in `reference`) need not be.
        missing = (1 << (self._num_parts - 1).bit_length()) - self._num_parts
        total = combine_in_tree(torch.cat([gathered, gathered.new_zeros((missing, gathered.shape[1]))]))
        values: list[float] = (total[:-1] / total[-1]).tolist()
        if not all(map(math.isfinite, values)):
            raise mark_agreed(
                TrainingError(
                    "the mean Jacobian is not finite; lower training.optimizer.learning_rate or look for extreme inputs"
                )
            )
        return values

    def _sum(self, inputs: torch.Tensor | None) -> torch.Tensor:
        """Return the sum of the Jacobians of one virtual rank's samples, and their number: (O F + 1,), float64."""
        sample = self._model.get_buffer("input_mean")[None].clone() if inputs is None else inputs
        with physical_outputs(self._model):
            _, jacobian = input_jacobian(self._model, sample)  # (n, O, F)
        total = jacobian.double().sum(dim=0).flatten()
        count = total.new_full((1,), float(len(sample)))
        return torch.cat([total, count]).cpu() * (0.0 if inputs is None else 1.0)


def build_jacobian_watch(
    model: Any, sources: Sequence[EvaluationSource], ranks: Ranks, layout: VirtualRanks
) -> JacobianWatch:
    """Return a `JacobianWatch` of the first samples of `sources`. Collective.

    Raises ConfigError, on all ranks, for samples that are fields.
    """
    watch = JacobianWatch(torch_view(model), sources, ranks, layout)
    ranks.on_all_ranks(watch.check_points)
    return watch


def _first_inputs(source: EvaluationSource, rows: int) -> torch.Tensor | None:
    """Return the inputs of the first `rows` samples of `source`; None if it has none."""
    found: list[torch.Tensor] = []
    count = 0
    for block in source.blocks():
        found.append(torch.as_tensor(block.inputs[: rows - count]))
        count += len(found[-1])
        if count >= rows:
            break
    return torch.cat(found) if count else None
