"""The data set of a run: in memory, streamed from files, or distributed as in the C++ program.

F  input features      O  targets      C  the F inputs and O targets
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mpitrain.comm import Array, VirtualRanks
from mpitrain.data.dataset.batches import BatchPlan, EvaluationSource, MicrobatchSource
from mpitrain.data.dataset.split_rule import SplitRule, describe_held_out, split_notices
from mpitrain.data.moments import Moments
from mpitrain.data.samples import NONE_LEFT_OUT, LeftOut
from mpitrain.errors import DataError

Convert = Callable[[npt.NDArray[Any]], Array]
"""Converts a numpy array to an array of the same values that an engine computes with, such as a tensor on a device."""

# With fewer float32 values per standard deviation than this (two digits), a network sees steps instead of a continuous
# variable.
_FEWEST_STEPS, _LARGE = 100, 1e3
_FEWEST_NINES, _SMALLEST_NINES, _SMALLEST_MARK, _FAR_DEVIATIONS = 3, 999.0, 1e15, 3.0
_TIMES_OTHERS, _TIMES_OTHERS_OF_MARKS = 2.0, 1e6

LayoutOfSamples = VirtualRanks | Callable[[int, int], VirtualRanks]
"""The owners of samples, or a function that returns them from the numbers of usable and of training samples."""


def settled(layout: LayoutOfSamples, num_usable: int, num_training: int) -> VirtualRanks:
    """Return the owners of samples, for these numbers of samples."""
    return layout if isinstance(layout, VirtualRanks) else layout(num_usable, num_training)


@dataclass(frozen=True)
class Normalization:
    """Mean and standard deviation of each input (F,) and target (O,), in the model's dtype, the same on all ranks.

    These are torch tensors in `reference` semantics, otherwise numpy arrays.
    """

    mean: Array
    std: Array
    output_mean: Array
    output_std: Array


@dataclass(frozen=True)
class DataSummary:
    """Counts and statistics of all ranks' samples, the same on all ranks.

    Attributes
    ----------
    num_training_samples : int
        Number of samples that are trained on.
    num_validation_samples : int or None
        Number of held-out samples; None in `reference` semantics, where nothing can be held out.
    num_dropped_samples : int
        Number of selected samples that are not usable (see `valid_rows`); in `reference` the number of samples that are
        left out so that all ranks have equally many.
    normalization : Normalization
        Mean and standard deviation of inputs (F,) and targets (O,), in the model's dtype.
    moments : Moments or None
        Statistics (C,) of the training samples, float64, in the units of the samples; None in `reference`, which has
        only its one-pass `normalization`.
    input_names, target_names : tuple of str, lengths F and O
        The inputs and targets in order, as the settings spell them.
    num_missing : tuple of int, length C
        Number of missing values of each input, then of each target, in the selected samples; () in `reference`.
    largest_share : int or None
        Largest number of samples that a virtual rank trains on; None (default) if they are distributed evenly.
    split : SplitRule or None
        The rule that holds samples out; None (default) in `reference`.
    num_test_samples : int
        Number of samples kept for the test at the end; default 0.
    left_out : LeftOut
        Numbers of points that were read but are not samples; 0 if ensemble members share the samples of a node.
    """

    num_training_samples: int
    num_validation_samples: int | None
    num_dropped_samples: int
    normalization: Normalization
    moments: Moments | None
    input_names: tuple[str, ...]
    target_names: tuple[str, ...]
    num_missing: tuple[int, ...] = ()
    largest_share: int | None = None
    split: SplitRule | None = None
    num_test_samples: int = 0
    left_out: LeftOut = NONE_LEFT_OUT

    @property
    def num_usable_samples(self) -> int:
        """The number of samples that are trained on or held out."""
        return self.num_training_samples + (self.num_validation_samples or 0) + self.num_test_samples

    @property
    def held_out(self) -> str | None:
        """A description of the validation samples, None if each is drawn individually."""
        count = self.num_validation_samples or 0
        return None if self.split is None else describe_held_out(self.split, count, self.num_usable_samples)

    @property
    def split_notices(self) -> tuple[str, ...]:
        """The notices about the split."""
        counts = self.num_validation_samples or 0, self.num_test_samples, self.num_usable_samples
        return () if self.split is None else tuple(split_notices(self.split, *counts))

    @property
    def holds_out(self) -> bool:
        """Whether there are validation samples."""
        return bool(self.num_validation_samples)

    @property
    def target_mean(self) -> npt.NDArray[np.float64]:
        """Mean of each target over the training samples (O,); NaN where there are no moments."""
        if self.moments is None:
            return np.full(len(self.target_names), np.nan)
        return self.moments.mean[len(self.input_names) :]

    @property
    def constant_features(self) -> tuple[str, ...]:
        """Names of the inputs and targets that have one value only."""
        if self.moments is None:
            return ()
        names = (*self.input_names, *self.target_names)
        return tuple(name for name, constant in zip(names, is_constant(self.moments), strict=True) if constant)

    @property
    def coarse_features(self) -> dict[str, tuple[float, float]]:
        """Mean and standard deviation, by name, of inputs and targets with few float32 values within a deviation.

        Large constant values are included, as they may be constant only in float32.
        """
        if self.moments is None:
            return {}
        names, mean, std = (*self.input_names, *self.target_names), self.moments.mean, self.moments.std
        may_differ = ~is_constant(self.moments) | (np.abs(mean) >= _LARGE)
        is_coarse = (std < _FEWEST_STEPS * np.spacing(np.abs(mean).astype(np.float32))) & may_differ
        return {name: (float(mean[one]), float(std[one])) for one, name in enumerate(names) if is_coarse[one]}

    @property
    def probable_fill_values(self) -> dict[str, float]:
        """Smallest or largest values of inputs and targets, by name, that look like fill values."""
        if self.moments is None:
            return {}
        names, of, std = (*self.input_names, *self.target_names), self.moments, self.moments.std
        found = {}
        for number, name in enumerate(names):
            low, high, mean = (float(one[number]) for one in (of.minimum, of.maximum, of.mean))
            for end, other in ((low, high), (high, low)):
                if low < high and _looks_like_fill(end, other, mean, float(std[number])):
                    found[name] = end
        return found


class Dataset(Protocol):
    """The samples of one run; this rank owns those of its virtual ranks (in `reference` semantics its own share).

    No method is collective.
    """

    @property
    def summary(self) -> DataSummary:
        """Counts and statistics of all ranks' samples."""

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices for the user on how the samples are held."""

    def microbatches(self, plan: BatchPlan, seed: int, shuffle: bool) -> Sequence[MicrobatchSource]:
        """Return the source of each owned virtual rank's microbatches, in order.

        Parameters
        ----------
        plan : BatchPlan
            The sizes of the batches.
        seed : int
            Seed of the order of the samples, which depends on (seed, epoch, virtual rank); with `data.streaming` on
            the stream instead of the virtual rank.
        shuffle : bool
            Whether each epoch has another order. Without effect in `reference` semantics, and on samples in memory if
            an epoch has one step.

        Returns
        -------
        sequence of MicrobatchSource
            One for each virtual rank that this rank owns; one without samples if it owns none.
        """

    def evaluation(self, held_out: bool = True) -> Sequence[EvaluationSource]:
        """Return the samples of each owned virtual rank for an evaluation, in order.

        Parameters
        ----------
        held_out : bool
            True (default): the samples held out for validation; False: the training samples. In `reference` semantics
            both are the training samples.

        Returns
        -------
        sequence of EvaluationSource
            One for each virtual rank that this rank owns; a source may have no samples.
        """

    def converted(self, convert: Convert) -> Dataset:
        """Return the same samples, with the arrays of microbatches and blocks converted.

        Parameters
        ----------
        convert : callable
            Function of an ndarray that returns an array of the same shape and values, such as a tensor on a device.

        Returns
        -------
        Dataset
            In `reference` semantics this data set itself, which holds tensors on the CPU.
        """


def _looks_like_fill(end: float, other: float, mean: float, std: float) -> bool:
    """Return whether `end`, the smallest or largest value, is a usual fill value (9999, -1e34) far from the others.

    Fill values in a tenth of the values or more are not found: they lie as close to the mean as valid values may.
    """
    if not np.isfinite(end) or abs(end - mean) <= _FAR_DEVIATIONS * std:
        return False
    digits = f"{abs(end):.7g}".replace(".", "")
    is_nines = set(digits) == {"9"} and len(digits) >= _FEWEST_NINES and abs(end) >= _SMALLEST_NINES
    is_large = abs(end) >= _SMALLEST_MARK and abs(end) > _TIMES_OTHERS_OF_MARKS * abs(other)
    return (is_nines and abs(end) > _TIMES_OTHERS * abs(other)) or is_large


def is_constant(moments: Moments) -> npt.NDArray[np.bool_]:
    """Return which features (C,) have one value only.

    The range shows this exactly; the standard deviation may contain rounding noise.
    """
    return moments.minimum >= moments.maximum


def normalization_of(moments: Moments, num_inputs: int, dtype: npt.DTypeLike) -> Normalization:
    """Return the normalisation of the first `num_inputs` features as inputs, and of the others as targets.

    A constant feature carries no information: it is centred, and divided by 1 so that it stays finite.
    """
    std = np.where(is_constant(moments), 1.0, moments.std)
    parts = (moments.mean[:num_inputs], std[:num_inputs], moments.mean[num_inputs:], std[num_inputs:])
    return Normalization(*(part.astype(dtype) for part in parts))


def check_some_are_left(num_selected: int, num_dropped: int, num_training: int) -> None:
    """Raise DataError if no sample is left to train on."""
    if num_training == 0:
        raise DataError(
            f"{num_selected} samples selected, {num_dropped} dropped as NaN or fill value: none is left to train on"
        )
