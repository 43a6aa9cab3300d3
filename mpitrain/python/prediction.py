"""Predictions as data in memory: reads the prediction file of `mpitrain predict` and names it like the data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mpitrain.errors import MissingDependencyError
from mpitrain.python.handover import filled_folder, handed_over
from mpitrain.python.left_behind import left_behind
from mpitrain.python.process import run_command
from mpitrain.python.settings import needed_variables, to_overrides
from mpitrain.python.variables import is_dataframe, is_dataset

_PREDICTED, _ERROR, _ROLE = "_predicted", "_error", "sample_role"
# Estimated size of the prediction relative to the data: 3 numbers of 4 bytes per target and 1 per derivative are rarely
# larger than the data.
_TIMES_THE_DATA = 2


def predict(
    run: Path, data: Any, jacobian: bool, ranks: int | None, trust_code: bool, more: Mapping[str, Any]
) -> Any:  # fmt: skip
    """Return predictions as a Dataset, or as a DataFrame if `data` is a DataFrame (see `Run.predict`)."""
    _xarray()  # raise before anything is computed
    given, data = data, _as_samples(data)
    _, overrides = to_overrides(None, more)
    size = _TIMES_THE_DATA * int(getattr(data, "nbytes", 0) or 0)
    with (
        left_behind() as left,
        filled_folder(size, run, left, is_read_everywhere=True) as folder,
        handed_over(data, run, left, needed_variables(run / "config.yaml", overrides, may_lack_targets=True)) as files,
    ):
        output = folder / "prediction.nc"
        arguments = [str(run), *overrides, "--output", str(output), "--layout", "data"]
        arguments += ["--jacobian" if jacobian else "--no-jacobian", *(["--data", *files] if files else [])]
        arguments += ["--trust-code"] if trust_code else []
        run_command("predict", arguments, left, ranks, quiet=True)
        predicted = _named_as_data(_every_row(_read(output), data))
    if is_dataframe(data):
        return _as_dataframe(predicted, data)
    predicted = predicted if data is given else predicted.squeeze(drop=True)
    return _with_coordinates(predicted, given) if hasattr(given, "coords") else predicted


def _as_samples(data: Any) -> Any:
    """Return data without dimensions (a dict of numbers, a Dataset of one point) with a dimension of one sample."""
    if is_dataset(data) and not data.sizes:
        return data.reset_coords().expand_dims("mpitrain_sample").set_coords(list(data.coords))
    if not is_dataset(data) and isinstance(data, Mapping) and data and all(np.ndim(one) == 0 for one in data.values()):
        return {name: _as_array(one) for name, one in data.items()}
    return data


def _as_array(one: Any) -> Any:
    if hasattr(one, "detach"):
        return one.reshape(1)
    return np.ma.reshape(one.values if hasattr(one, "dims") else one, 1)


def _xarray() -> Any:
    try:
        import xarray
    except ImportError as error:
        raise MissingDependencyError("predict: needs xarray: python -m pip install xarray") from error
    return xarray


def _read(path: Path) -> Any:
    """Return the Dataset of the file in memory; times are numbers if xarray cannot represent them, such as year 0."""
    xarray = _xarray()
    try:
        with xarray.open_dataset(path) as written:
            return written.load()
    except ValueError:
        with xarray.open_dataset(path, decode_times=False) as written:
            return written.load()


def _every_row(written: Any, data: Any) -> Any:
    """Return a row for each row of the data, NaN for rows that are not samples; a grid is returned unchanged."""
    if "grid_index" not in written.variables or isinstance(data, str | os.PathLike | None):
        return written
    if hasattr(data, "sizes"):
        name, count = next(iter(data.sizes.items()))
    else:
        name, count = "row", len(next(iter(data.values())) if isinstance(data, Mapping) else data)
    placed = written.drop_vars("grid_index").assign_coords(n=written["grid_index"].values)
    return placed.reindex(n=range(count)).drop_vars("n").rename(n=name)


def _named_as_data(written: Any) -> Any:
    """Return the predictions under the names of their targets, without the targets, errors and roles of samples."""
    targets = [str(name).removesuffix(_PREDICTED) for name in written.data_vars if str(name).endswith(_PREDICTED)]
    others = [name for target in targets for name in (target, target + _ERROR) if name in written.variables]
    return written.drop_vars([*others, _ROLE], errors="ignore").rename({name + _PREDICTED: name for name in targets})


def _with_coordinates(predicted: Any, data: Any) -> Any:
    """Return the predictions with the coordinates of the data instead of those in the file."""
    own = {
        name: one
        for name, one in data.coords.items()
        if all(predicted.sizes.get(dimension) == size for dimension, size in one.sizes.items())
    }
    kept = [name for name in predicted.coords if name in own]
    return predicted.drop_vars(kept).assign_coords(own)


def _as_dataframe(predicted: Any, data: Any) -> Any:
    import pandas as pd

    columns = {str(name): one.values.reshape(-1) for name, one in predicted.data_vars.items()}
    return pd.DataFrame(columns, index=data.index)
