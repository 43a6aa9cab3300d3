"""Predictions of an ensemble: the mean and spread over the members, and each member's prediction.

M  members      N  samples      F  input features      O  outputs
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpitrain.comm import require_torch
from mpitrain.errors import UserError, reason_of
from mpitrain.inference.arithmetic import Arithmetic, Array, Choice, choose_arithmetic
from mpitrain.json_text import read_json
from mpitrain.models import StoredNetwork
from mpitrain.models.files.stored_network import load_network as load_network
from mpitrain.train import RunFolder
from mpitrain.train.folder.settings import plain_name

MEMBERS = "ensemble.json"
"""The file that lists the ensemble's members: {"members": [folder names]}, all trained with the same settings."""


@dataclass(frozen=True)
class StoredEnsemble(StoredNetwork):
    """The networks of an ensemble; `module` returns their mean output."""

    members: Sequence[StoredNetwork] = ()
    member_names: Sequence[str] = ()

    @functools.cached_property
    def module(self) -> Any:
        """See `StoredNetwork.module`."""
        require_torch("an ensemble as one network")
        from mpitrain.models import EnsembleNetwork

        return EnsembleNetwork([member.module for member in self.members]).eval()


def is_ensemble(folder: Path) -> bool:
    """Tell whether a folder holds an ensemble."""
    return (folder / MEMBERS).is_file()


def member_folders(folder: Path) -> list[Path]:
    """Return the folders of an ensemble's members. Raises UserError if their list cannot be read or is empty."""
    try:
        names = read_json(folder / MEMBERS)["members"]
        if not isinstance(names, list):
            raise ValueError("members is no list")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder / MEMBERS}: cannot be read ({reason_of(error)}); mpitrain ensemble --resume writes it"
        ) from error
    if not names:
        raise UserError(f"{folder}: no member finished without an error; see {folder / 'ensemble.csv'}")
    return [folder / "members" / plain_name(name, folder / MEMBERS) for name in names]


def load_ensemble(folder: Path, model_file: str, hidden_activation: str, trust_code: bool) -> StoredEnsemble:
    """Read the networks of an ensemble's members. Raises UserError if one cannot be read."""
    folders = member_folders(folder)
    files = [RunFolder(own, model_file).stored_model for own in folders]
    members = [load_network(file, hidden_activation, trust_code) for file in files]
    names = [own.name for own in folders]
    first, digest = members[0], hashlib.sha256("".join(member.sha256 for member in members).encode()).hexdigest()
    return StoredEnsemble(
        None, first.description, False, first.input_mean, first.num_outputs, digest, first.engine, members, names
    )


@dataclass(frozen=True)
class EnsembleArithmetic:
    """Arithmetic of an ensemble: each member's own, then mean and spread over the members in float64."""

    members: Sequence[Arithmetic]

    @property
    def description(self) -> str:
        """See `Arithmetic.description`."""
        return self.members[0].description

    def evaluate(self, inputs: Array, with_jacobian: bool) -> tuple[Array, ...]:
        """See `Arithmetic.evaluate`; last an array (N, ...) of spread, members' outputs, spread of derivatives."""
        answers = [member.evaluate(inputs, with_jacobian) for member in self.members]
        values = np.stack([answer[0] for answer in answers]).astype(np.float64)  # (M, N, O)
        extra = [_spread(values), *values]
        if not with_jacobian:
            return values.mean(0), _columns(extra)
        jacobians = np.stack([answer[1] for answer in answers]).astype(np.float64)  # (M, N, O, F)
        return values.mean(0), jacobians.mean(0), _columns([*extra, _spread(jacobians)])


def _columns(parts: Sequence[Array]) -> Array:
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def _spread(values: Array) -> Array:
    return values.std(0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1:])


def arithmetic_of(network: StoredNetwork, choice: Choice, num_samples: int) -> Arithmetic:
    """Return the arithmetic of a network or an ensemble. Raises UserError like `choose_arithmetic`."""
    if isinstance(network, StoredEnsemble):
        return EnsembleArithmetic([choose_arithmetic(member, choice, num_samples) for member in network.members])
    return choose_arithmetic(network, choice, num_samples)
