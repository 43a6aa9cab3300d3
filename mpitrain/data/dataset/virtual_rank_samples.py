"""The samples of one virtual rank, in memory.

F  input features      O  targets
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True)
class VirtualRankSamples:
    """One virtual rank's n samples (n may be 0), and behind them one row of zeros that weighs nothing, for padding.

    `padded_inputs` (n + 1, F, ...), `padded_targets` (n + 1, O, ...), `padded_weights` (n + 1, 1 or O, ...);
    `grid_index` (n,) is each sample's place in its source.
    """

    virtual_rank: int
    padded_inputs: torch.Tensor
    padded_targets: torch.Tensor
    padded_weights: torch.Tensor
    grid_index: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.grid_index)

    @property
    def inputs(self) -> torch.Tensor:
        """The samples' inputs (n, F, ...)."""
        return self.padded_inputs[:-1]

    @property
    def targets(self) -> torch.Tensor:
        """The samples' targets (n, O, ...)."""
        return self.padded_targets[:-1]

    @property
    def weights(self) -> torch.Tensor:
        """How much the targets count (n, 1 or O, ...)."""
        return self.padded_weights[:-1]
