"""A user's own settings as a case of `mpitrain bench`: the network and engine of a run, on samples of its shape."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mpitrain.bench.step_cases import Engine, Network, ScaledRun
from mpitrain.config import RunConfig, load_run_config
from mpitrain.data.selection.names import CICE_INPUTS, CICE_TARGET
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.errors import UserError

_DEFAULT_GRID, _DEFAULT_BATCH = (160, 240), 64
# What decides which samples there are: these are made, as many as the measurement needs, and none is held out.
_ALL_SAMPLES = (
    "data.streaming=false",
    "data.split=random",
    *(f"data.{key}=null" for key in ("folds", "fold", "split_blocks", "validation_path", "test_path", "max_patterns")),
    *("data.thin_fraction=1", "data.validation_split=0"),
)


def configured_run(path: Path | None, overrides: Sequence[str], batch_size: int | None) -> ScaledRun:
    """Return what `mpitrain train PATH OVERRIDES` would step with; its files are opened, not read.

    `batch_size`: in place of that of the settings, None for theirs. Raises ConfigError and DataError as a training
    does, and UserError for settings whose step is not measured.
    """
    config = load_run_config(path, overrides).config
    if config.semantics == "reference":
        raise UserError("semantics=reference: one step takes all samples; only semantics=standard is measured")
    training = config.training
    size = batch_size or training.global_batch_size or training.batch_size or _DEFAULT_BATCH
    if size == "full":
        raise UserError("training.global_batch_size=full: give --batch, the samples of the batch that is shared out")
    inputs, targets, grid = _shape_of(config)
    file = str(path.absolute()) if path else None
    network = Network(
        path.stem if path else "settings", (), "", "", (*overrides, *_ALL_SAMPLES), (len(inputs), *grid), file, inputs,
        targets,
    )  # fmt: skip
    engine = Engine(f"{training.engine}-{training.reduction or 'fixed'}", "ours", note="as the settings say")
    return ScaledRun(network, engine, int(size), training.virtual_ranks)


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
