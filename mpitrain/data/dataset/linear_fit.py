"""Linear regression of the targets on the inputs at the same point: one for all points, or one at each point.

b  samples of a block     N  rows: samples, or the points of fields     F  inputs     O  targets     J, I  rows, columns
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.comm import FixedTreeReducer, Ranks, host_array
from mpitrain.data.dataset.batches import EvaluationSource, Microbatch
from mpitrain.data.dataset.dataset import Normalization

Values = npt.NDArray[np.float64]
MOST_PLACE_SUMS = 2_000_000
# Candidate ridge penalties of a point's own coefficients; a further candidate is to have no own coefficients.
_PENALTIES = (1.0, 3.0, 10.0, 30.0, 100.0)


def num_place_sums(num_inputs: int, num_targets: int, num_places: int) -> int:
    """Return how many sums a virtual rank holds for a regression at each of `num_places` points."""
    return num_targets * num_places * (num_inputs + 1) * (num_inputs + 2)


@dataclass(frozen=True)
class LinearFit:
    """Least-squares regressions of each target, as it is learnt, on 1 and the normalised inputs, in float64.

    `everywhere` (F + 1, O) are the coefficients for all points, the constant first; `here` (O, F + 1, J, I) are those
    that are added at each point.
    """

    everywhere: Values
    here: Values | None = None


@dataclass(frozen=True)
class LinearRegression:
    """Regressions on the training samples of this rank's virtual ranks, `sources`; bitwise equal on all ranks."""

    sources: Sequence[EvaluationSource]
    normalization: Normalization
    reducer: FixedTreeReducer
    _scaling: tuple[Values, Values] = field(init=False)

    def __post_init__(self) -> None:
        mean, std = (host_array(one).astype(np.float64) for one in (self.normalization.mean, self.normalization.std))
        object.__setattr__(self, "_scaling", (mean, std))

    def known(self, block: Microbatch) -> Values:
        """Return the regressors of a block: 1 and the normalised inputs (b, ..., F + 1)."""
        mean, std = self._scaling
        values = (_last(block.inputs) - mean) / std
        return np.concatenate([np.ones_like(values[..., :1]), values], axis=-1)

    def fit(self) -> Values:
        """Return the coefficients (F + 1, O) of one regression for all points. Collective."""
        size, num_targets = len(self._scaling[0]) + 1, len(host_array(self.normalization.output_mean))

        def sums(source: EvaluationSource) -> Values:
            total = np.zeros((num_targets, size, size + 1))
            for block in source.blocks():
                known, targets, weights = self.known(block), _last(block.targets), _weights(block)
                rows, columns = known.reshape(-1, size), targets.reshape(-1, num_targets)
                for number, weight in enumerate(weights.reshape(-1, num_targets).T):
                    both = np.concatenate([rows, columns[:, number : number + 1]], axis=1)
                    total[number] += np.einsum("nf,ng->fg", rows * weight[:, None], both)
            return total.reshape(-1)

        total = self._added(sums).reshape(num_targets, size, size + 1)
        # The solution of least norm: inputs may be constant or collinear.
        solved = [np.linalg.lstsq(one[:, :-1], one[:, -1], rcond=1e-12)[0] for one in total]
        return np.stack(solved, axis=1)

    def fit_everywhere(self, ranks: Ranks) -> LinearFit:
        """Return the regression for all points, as solved on the root. Collective."""
        return LinearFit(_shared(self.fit(), ranks))

    def fit_places(self, ranks: Ranks, grid: tuple[int, int]) -> LinearFit:
        """Return the regression of `fit_everywhere`, with coefficients that each point of fields adds. Collective.

        A point's own coefficients are those of a ridge regression of the residuals of `fit_everywhere`. The penalty is
        the one with the smallest leave-one-out errors on the training samples; if these are smallest without own
        coefficients, points add nothing.
        """
        everywhere = self.fit_everywhere(ranks).everywhere
        size, num_targets = everywhere.shape

        def sums(source: EvaluationSource) -> Values:
            total = np.zeros((num_targets, *grid, size, size + 1))
            for block in source.blocks():
                known, left, counted = self._left_by(everywhere, block)
                for number in range(num_targets):
                    both = np.concatenate([known, left[..., number, None]], axis=-1)
                    counted_known = known * counted[..., number, None]
                    total[number] += np.einsum("bjif,bjig->jifg", counted_known, both)
            return total.reshape(-1)

        total = self._added(sums).reshape(num_targets, *grid, size, size + 1)
        ridges = _shared(np.stack([_ridge(total, penalty) for penalty in _PENALTIES]), ranks)
        errors = self._left_out_errors(everywhere, total, ridges)
        best = int(np.argmin(errors))
        return LinearFit(everywhere, np.zeros_like(ridges[0]) if best == len(ridges) else ridges[best])

    def _left_out_errors(self, everywhere: Values, total: Values, ridges: Values) -> Values:
        """Return the sums of squared leave-one-out errors with each of `ridges` (P, O, F + 1, J, I), then without any.

        The errors of each target are divided by its standard deviation.
        """
        std = host_array(self.normalization.output_std).astype(np.float64)
        inverse = [np.linalg.inv(_penalised(total, penalty)) for penalty in _PENALTIES]

        def sums(source: EvaluationSource) -> Values:
            found = np.zeros(len(ridges) + 1)
            for block in source.blocks():
                known, left, counted = self._left_by(everywhere, block)
                for number in range(len(std)):
                    own, is_counted = left[..., number] / std[number], counted[..., number]
                    found[-1] += (own**2 * is_counted).sum()
                    for at, (ridge, inverted) in enumerate(zip(ridges, inverse, strict=True)):
                        answer = np.einsum("bjif,fji->bji", known, ridge[number]) / std[number]
                        leverage = np.einsum("bjif,jifg,bjig->bji", known, inverted[number], known)
                        found[at] += (((own - answer) / (1 - leverage * is_counted)) ** 2 * is_counted).sum()
            return found

        return self._added(sums)

    def _left_by(self, everywhere: Values, block: Microbatch) -> tuple[Values, Values, Values]:
        """Return a block's regressors (b, J, I, F + 1), the residuals of `everywhere`, and which of them count."""
        known = self.known(block)
        counted = (_weights(block) > 0).astype(np.float64)
        left = np.where(counted > 0, _last(block.targets) - np.einsum("...f,fo->...o", known, everywhere), 0.0)
        return known, left, counted

    def _added(self, sums: Callable[[EvaluationSource], Values]) -> Values:
        """Return the total of `sums` over all virtual ranks, added in the order of the fixed tree. Collective."""
        return np.asarray(self.reducer.reduce(np.stack([sums(source) for source in self.sources])))


def _penalised(total: Values, penalty: float) -> Values:
    return total[..., :-1] + penalty * np.eye(total.shape[-2])


def _ridge(total: Values, penalty: float) -> Values:
    """Return the coefficients (O, F + 1, J, I) of the sums (O, J, I, F + 1, F + 2)."""
    solved: Values = np.linalg.solve(_penalised(total, penalty), total[..., -1:]).astype(np.float64)
    return np.moveaxis(solved[..., 0], -1, 1)


def _shared(values: Values, ranks: Ranks) -> Values:
    """Return the root's values: a library's solutions may differ in the last bits between kinds of CPU. Collective."""
    return np.asarray(ranks.on_root(lambda: values))


def _last(values: Any) -> Values:
    """Return (b, C, ...) as (b, ..., C), float64."""
    return np.moveaxis(host_array(values), 1, -1).astype(np.float64)


def _weights(block: Microbatch) -> Values:
    return _last(np.broadcast_to(host_array(block.weights), block.targets.shape))
