"""The network to export: that of one run, or those of several runs as an ensemble.

b  samples      F  input features      H, W  rows and columns of a field
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.comm import host_array, to_tensor
from mpitrain.config import RunConfig
from mpitrain.data import SampleSource, valid_rows
from mpitrain.errors import DataError, UserError
from mpitrain.export.request import ExportRequest, Say
from mpitrain.inference.arithmetic import fill_with_means
from mpitrain.inference.predictor import open_data
from mpitrain.inference.run_weights import RunWeights, describe_run, load_run, load_weights
from mpitrain.json_text import read_json
from mpitrain.models import ModelDescription, grid_of
from mpitrain.models.kinds import file_module
from mpitrain.train import RunFolder, trusts_code_of

_MOST_SAMPLES = 4096
_DRAWN_FIELD = (32, 32)
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ExportedNetwork:
    """The network to export, or those of an ensemble, and the (first) run.

    `models` are of any kind: see `empty_network`. Outputs are compared for `samples` (b, F) or (b, F, H, W), which
    `what` describes; `origins` names the weights of each network.
    """

    models: tuple[Any, ...]
    first: LoadedRun
    samples: npt.NDArray[Any]
    what: str
    origins: tuple[str, ...]

    @property
    def is_ensemble(self) -> bool:
        """Whether there are several networks."""
        return len(self.models) > 1

    @functools.cached_property
    def members(self) -> tuple[Any, ...]:
        """The networks as torch modules; a single one if this is not an ensemble."""
        return tuple(map(file_module, self.models))

    @functools.cached_property
    def model(self) -> Any:
        """The network, or the ensemble of all networks, as one torch module."""
        if not self.is_ensemble:
            return self.members[0]
        from mpitrain.models import EnsembleNetwork

        return EnsembleNetwork(list(self.members)).eval()

    @functools.cached_property
    def inputs(self) -> Any:
        """The samples as a torch tensor."""
        return to_tensor(self.samples, "cpu")

    @property
    def origin(self) -> str:
        """A description of the weights, in one line."""
        more = f", and of {len(self.origins) - 1} other runs: mean and spread" if self.is_ensemble else ""
        return f"{self.origins[0]}{more}"


@dataclass(frozen=True)
class LoadedRun:
    """One run's folder, settings, weights and data, and the names and units of its inputs and outputs."""

    run: RunFolder
    config: RunConfig
    weights: RunWeights
    source: SampleSource | None
    description: ModelDescription

    @property
    def variables(self) -> tuple[object, ...]:
        """The properties that must be equal for all members of an ensemble."""
        state, names = self.weights.model.state_dict(), self.description
        outputs = state.get("output_mean", state.get("fc2.bias"))
        kind = str(state["input_mean"].dtype).removeprefix("torch.")
        sizes = (len(state["input_mean"]), None if outputs is None else len(outputs), kind)
        return (*sizes, self.config.data.samples, tuple(names.input_names), tuple(names.target_names))

    @property
    def statistics(self) -> Mapping[str, Mapping[str, float]]:
        """The finite numbers in the run's statistics of each variable, by name; empty if there is no valid file."""
        try:
            record = read_json(self.run.statistics)
            return {str(one["name"]): _finite_numbers(one) for one in record["variables"]}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    @property
    def units(self) -> tuple[str, ...]:
        """Units of inputs and outputs; "" if unknown."""
        return (*self.description.input_units, *self.description.target_units)


def load_networks(request: ExportRequest, say: Say) -> ExportedNetwork:
    """Return the networks that `request` names; `say` the notices of their weights.

    Raises UserError or CheckpointError.
    """
    first, *others = (_load(folder, request) for folder in (request.run, *request.members))
    data = [path for one in (first, *others) if one.source for path in one.source.paths]
    request.check_outputs([f"normalization.{request.output_file.name}"], data)
    for other in others:
        units_differ = any(a and b and a != b for a, b in zip(first.units, other.units, strict=False))
        if other.variables != first.variables or units_differ:
            raise UserError(
                f"{other.run.path}: has other inputs or outputs than {request.run}, in number, type, name, order or "
                "units; all members of an ensemble need the same ones"
            )
    for one in (first, *others):
        for line in one.weights.notices:
            say(f"note: {line}")
    models = tuple(one.weights.model for one in (first, *others))
    samples, what = sample_inputs(models[0], first.source, first.config.data.samples)
    origins = tuple(one.weights.origin for one in (first, *others))
    return ExportedNetwork(models, first, samples, what, origins)


def _load(folder: Path, request: ExportRequest) -> LoadedRun:
    trusts = trusts_code_of(folder, request.trust_code)
    run, config = load_run(folder, trusts)
    weights = load_weights(run, config.network, config.exported_weights, request.weights, request.checkpoint, trusts)
    source = open_data(config, run.data_files(config.data.entries))
    return LoadedRun(run, config, weights, source, describe_run(run, config.variables, weights.model, source))


def _finite_numbers(record: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the numbers of a record that are finite as float."""
    numbers = {key: value for key, value in record.items() if isinstance(value, int | float)}
    return {key: float(value) for key, value in numbers.items() if abs(value) < sys.float_info.max}


def sample_inputs(model: Any, source: SampleSource | None, kind: str) -> tuple[Array, str]:
    """Return inputs for which outputs are compared, and a description of them.

    They are (b, F), or (b, F, H, W) if `kind` is "fields".
    """
    mean, std = (host_array(model.get_buffer(name)) for name in ("input_mean", "input_std"))
    found = _real_inputs(source, mean) if source is not None and len(source.input_names) == len(mean) else None
    if found is not None:
        return found, f"{len(found)} samples of the run's data"
    shape = (64, len(mean), *((grid_of(model) or _DRAWN_FIELD) if kind == "fields" else ()))
    axes = [-1] + [1] * (len(shape) - 2)
    drawn = np.random.default_rng(0).standard_normal(shape).astype(mean.dtype)
    return drawn * std.reshape(axes) + mean.reshape(axes), "64 drawn samples (the run's data cannot be read)"


def _real_inputs(source: SampleSource, mean: Array) -> Array | None:
    most = _MOST_SAMPLES if source.kind == "points" else 4
    parts: list[Array] = []
    try:
        for chunk in source.chunks:
            samples = source.read(chunk)
            parts.append(fill_with_means(samples.inputs[np.flatnonzero(valid_rows(samples))].astype(mean.dtype), mean))
            if sum(map(len, parts)) >= most:
                break
    except DataError:
        return None
    finally:
        source.close()
    found = np.concatenate(parts)[:most] if parts else np.empty(0)
    return found if len(found) else None
