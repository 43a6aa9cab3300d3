"""The values of members of an ensemble for the samples that their fold holds out.

M  members      N  samples      O  targets
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mpitrain.config import DataSection, RunConfig
from mpitrain.data import VALIDATION, SampleSource, open_source, selection_of, valid_rows
from mpitrain.data.dataset.split import plan_split
from mpitrain.errors import DataError
from mpitrain.inference.arithmetic import choose_arithmetic
from mpitrain.models import StoredNetwork
from mpitrain.train import RunFolder, load_folder_settings

_MOST_SAMPLES = 20_000
_Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class FoldValues:
    """What members of one fold (M, N, O) say of its held-out samples, the truth (N, O) and positions (N,)."""

    values: _Values
    truth: _Values
    index: npt.NDArray[np.int64]


def open_member(member: Path) -> SampleSource:
    """Return the data of the member in a folder. Raises DataError where it is gone."""
    return open_source(selection_of(_settings_of(member)))


def _settings_of(member: Path) -> RunConfig:
    return load_folder_settings(RunFolder(member), trust_code=True).config  # no network is built from it


def values_of_fold(member: Path, networks: Sequence[StoredNetwork]) -> FoldValues | None:
    """Return what networks trained on one fold, that of the `member` in a folder, say of its first held-out samples.

    None where nothing is held out, for fields, and where samples are limited. Raises DataError where the data is gone.
    """
    config = _settings_of(member)
    if config.validation_split == 0 or config.data.samples != "points" or config.most_samples is not None:
        return None
    inputs, truth, index = _samples(open_member(member), config.split_data)
    return (
        FoldValues(np.stack([_evaluate(network, inputs) for network in networks]), truth, index) if len(truth) else None
    )


def _samples(source: SampleSource, data: DataSection) -> tuple[npt.NDArray[np.float32], _Values, npt.NDArray[np.int64]]:
    """Return the first held-out samples: inputs (N, F), targets (N, O) and positions (N,)."""
    rule = plan_split(data, source)
    inputs, truth, index, num_valid = [], [], [], 0
    try:
        for chunk in source.chunks:
            samples = source.read(chunk)
            usable = samples.take(np.flatnonzero(valid_rows(samples)))
            chosen = usable.take(np.flatnonzero(rule.roles(usable.grid_index, num_valid) == VALIDATION))
            num_valid += len(usable)
            inputs.append(chosen.inputs)
            truth.append(chosen.targets.astype(np.float64))
            index.append(chosen.grid_index)
            if sum(map(len, truth)) >= _MOST_SAMPLES:
                break
    finally:
        source.close()
    if not truth:
        raise DataError("nothing is selected")
    return np.concatenate(inputs), np.concatenate(truth), np.concatenate(index)


def _evaluate(network: StoredNetwork, inputs: npt.NDArray[np.float32]) -> _Values:
    # A page for people: the fastest arithmetic, whose last digits may follow the CPU.
    arithmetic = choose_arithmetic(network, "torch", len(inputs))
    return arithmetic.evaluate(inputs.astype(network.dtype), False)[0].astype(np.float64)
