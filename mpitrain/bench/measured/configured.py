"""A user's own settings as a case of `mpitrain bench`: the network and engine of a run, on samples of its shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mpitrain.bench.step_cases import Engine, Network
from mpitrain.config import RunConfig, load_run_config
from mpitrain.data.selection.names import CICE_INPUTS, CICE_TARGET
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.errors import UserError

_DEFAULT_GRID = (160, 240)
# What decides which samples there are: these are made, as many as the measurement needs, and none is held out.
_ALL_SAMPLES = (
    "data.streaming=false",
    "data.split=random",
    *(f"data.{key}=null" for key in ("folds", "fold", "split_blocks", "validation_path", "test_path", "max_patterns")),
    *("data.thin_fraction=1", "data.validation_split=0"),
)


@dataclass(frozen=True)
class ConfiguredRun:
    """What a run's settings say about its step; `batch_size`: samples of all ranks together, None where all are one."""

    network: Network
    engine: Engine
    batch_size: int | None
    num_virtual_ranks: int
    reduction: str


def configured_run(path: Path | None, overrides: Sequence[str]) -> ConfiguredRun:
    """Return what `mpitrain train PATH OVERRIDES` would step with; its files are opened, not read.

    Raises ConfigError and DataError as a training does, and UserError for settings whose step is not measured.
    """
    config = load_run_config(path, overrides).config
    if config.semantics == "reference":
        raise UserError("semantics=reference: its step is the C++ program's; bench scaling measures semantics=standard")
    inputs, targets, grid = _shape_of(config)
    name = path.stem if path else "settings"
    settings = (*overrides, *_ALL_SAMPLES)
    file = str(path.absolute()) if path else None
    network = Network(name, (), "", "", settings, (len(inputs), *grid), file, inputs, targets)
    training = config.training
    reduction = training.reduction or "fixed"
    engine = Engine(f"{training.engine}-{reduction}", "ours", note="as the settings say")
    size = training.global_batch_size or training.batch_size or 64
    batch_size = None if size == "full" else int(size)
    return ConfiguredRun(network, engine, batch_size, training.virtual_ranks, reduction)


def _shape_of(config: RunConfig) -> tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...]]:
    """Return the names of inputs and targets, and rows and columns where a sample is a field."""
    is_field = config.data.samples == "fields"
    if config.data.entries:
        source = open_source(selection_of(config, to_learn=True))
        return source.input_names, source.target_names, source.grid_shape if is_field else ()
    variables = config.variables
    inputs = tuple(variables.input_variables or CICE_INPUTS)
    targets = tuple(variables.output_variables or (CICE_TARGET,))
    return inputs, targets, _DEFAULT_GRID if is_field else ()
