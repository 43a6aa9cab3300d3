"""What the members say of samples that none of them has trained on, and how well their spread tells their error.

M  members      N  samples
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from mpitrain.config import RunConfig, load_run_config
from mpitrain.data.dataset.split import plan_split
from mpitrain.data.samples import valid_rows
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.ensemble.calibration import Calibration, calibration_of
from mpitrain.errors import DataError
from mpitrain.inference.arithmetic import choose_arithmetic
from mpitrain.models.files.stored_network import StoredNetwork
from mpitrain.train.run_folder import RunFolder

_MOST_SAMPLES = 20_000
_Values = npt.NDArray[np.float64]


def calibrate(
    folder: Path, rows: Sequence[Mapping[str, str]], networks: Mapping[str, StoredNetwork]
) -> Calibration | None:
    """Return the ensemble's spread against its error; None where no two members can be compared, or the data is gone.

    `rows` are those of the table; of their members those are compared that are in `networks`, by name. Members of one
    fold are compared on its samples; folds follow each other.
    """
    folds: dict[str, list[str]] = {}
    for row in rows:
        if row["member"] in networks:
            folds.setdefault(row["fold"], []).append(row["member"])
    try:
        parts = [
            _of_fold(folder / "members" / members[0], [networks[member] for member in members])
            for members in folds.values()
            if len(members) > 1
        ]
    except DataError:
        return None
    found = [part for part in parts if part is not None]
    if not found:
        return None
    # Members of different folds are different networks: they are compared as far as all folds have them.
    num_members = min(len(values) for values, _ in found)
    every_value = np.concatenate([values[:num_members] for values, _ in found], axis=1)
    return calibration_of(every_value, np.concatenate([truth for _, truth in found]))


def _of_fold(member: Path, networks: Sequence[StoredNetwork]) -> tuple[_Values, _Values] | None:
    """Return the members' values (M, N) of the first target for held-out samples, and its truth (N,)."""
    config = load_run_config(RunFolder(member).config).config
    if config.validation_split == 0 or config.data.samples != "points" or config.most_samples is not None:
        return None
    inputs, truth = _samples(config)
    return (np.stack([_evaluate(network, inputs) for network in networks]), truth) if len(truth) else None


def _samples(config: RunConfig) -> tuple[torch.Tensor, _Values]:
    """Return the first held-out samples: inputs (N, F) and the first target (N,)."""
    source = open_source(selection_of(config))
    rule = plan_split(config, source)
    inputs, truth, num_valid = [], [], 0
    try:
        for chunk in source.chunks:
            samples = source.read(chunk)
            usable = samples.take(np.flatnonzero(valid_rows(samples)))
            chosen = usable.take(np.flatnonzero(rule.flags(usable.grid_index, num_valid)))
            num_valid += len(usable)
            inputs.append(chosen.inputs)
            truth.append(chosen.targets[:, 0].astype(np.float64))
            if sum(map(len, truth)) >= _MOST_SAMPLES:
                break
    finally:
        source.close()
    if not truth:
        raise DataError("nothing is selected")
    return torch.from_numpy(np.concatenate(inputs)), np.concatenate(truth)


def _evaluate(network: StoredNetwork, inputs: torch.Tensor) -> _Values:
    # A page for people: the fastest arithmetic, whose last digits may follow the CPU.
    arithmetic = choose_arithmetic(network, "torch", len(inputs))
    return arithmetic.evaluate(inputs.to(network.dtype), False)[0][:, 0].astype(np.float64)
