"""Cases of `mpitrain bench` from a user's settings: network and engine of a run, synthetic samples of its shape."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from mpitrain.bench.step_cases import Engine, Network, ScaledRun
from mpitrain.config import OpenSettings, RunConfig, SampleCount
from mpitrain.data import open_source, selection_of
from mpitrain.data.selection.settings import default_or_given_names
from mpitrain.errors import UserError
from mpitrain.train.folder.settings import load_settings_to_read

_DEFAULT_GRID, _DEFAULT_BATCH = (160, 240), 64
# Overrides of all settings that select samples: the samples are synthetic, and all are for training.
_ALL_SAMPLES = (
    "data.streaming=false",
    "data.split=random",
    *(f"data.{key}=null" for key in ("folds", "fold", "split_blocks", "group", "max_patterns")),
    *("data.validation_path=null", "data.test_path=null"),
    *("data.thin_fraction=1", "data.validation_split=0", "data.test_split=0"),
)


def configured_run(
    path: Path | None, overrides: Sequence[str], batch_size: int | None, trust_code: bool = False
) -> ScaledRun:  # fmt: skip
    """Return the network, engine and batch of `mpitrain train PATH OVERRIDES`; its files are opened, not read.

    `batch_size` overrides that of the settings; None keeps it. Raises ConfigError and DataError as training does, and
    UserError for settings that cannot be measured.
    """
    config = load_settings_to_read(path, overrides, trust_code).config
    if config.semantics == "reference":
        raise UserError("semantics=reference: a step uses all samples; only semantics=standard can be measured")
    inputs, targets, grid, num_samples = _shape_of(config)
    decided = OpenSettings(config).decide(SampleCount(config.data.samples, num_samples))
    overrides = (*(f"{key}={json.dumps(value)}" for key, value in decided.values.items()), *overrides)
    training = decided.config.training
    size = batch_size or training.global_batch_size or training.batch_size or _DEFAULT_BATCH
    if size == "full":
        raise UserError("training.global_batch_size=full: cannot be measured; give the batch size with --batch")
    file = str(path.absolute()) if path else None
    network = Network(
        path.stem if path else "settings", (), "", "", (*overrides, *_ALL_SAMPLES), (len(inputs), *grid), file, inputs,
        targets,
    )  # fmt: skip
    engine = Engine(f"{training.engine}-{training.reduction or 'fixed'}", "ours", note="from the settings")
    return ScaledRun(network, engine, int(size))


def _shape_of(config: RunConfig) -> tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...], int]:
    """Return the names of inputs and of targets, the shape of a field, and the largest possible number of samples."""
    is_field = config.data.samples == "fields"
    if config.data.entries:
        source = open_source(selection_of(config, to_learn=True))
        num_samples = sum(record.num_times for record in source.files) if is_field else source.num_points
        return source.input_names, source.target_names, source.grid_shape if is_field else (), num_samples
    return *default_or_given_names(config.variables), _DEFAULT_GRID if is_field else (), 1
