"""Small files of gridded variables in every format, for tests that need to know every value."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import netCDF4
import numpy as np

from mpitrain.config import RunConfig, load_run_config
from mpitrain.data import VARIABLES_FILE, Asked, write_variables
from mpitrain.python.variables import variables_of

TIMES, ROWS, COLUMNS = 3, 4, 5


def config_of(path, *settings: str) -> RunConfig:
    """The configuration of a run on `path` that takes every point of `x` for `y`, but for `settings`."""
    given = ["variables.input_variables=[x]", "variables.output_variables=[y]", "domain.mask_mode=all"]
    return load_run_config(None, [f"data.data_path={path}", *given, *settings]).config


def ramp(first: float = 0.0, shape: tuple[int, ...] = (TIMES, ROWS, COLUMNS)) -> np.ndarray:
    """Numbers that tell their own place."""
    return (first + np.arange(np.prod(shape), dtype=np.float64)).reshape(shape).astype(np.float32)


def write_netcdf(path: Path, variables: dict, unlimited: str = "", chunks: dict | None = None, **attributes) -> Path:
    """Write `variables` (name: (dimensions, values)), with `attributes` (name: dict) and `chunks` (name: shape)."""
    with netCDF4.Dataset(str(path), "w") as dataset:
        dataset.set_auto_maskandscale(False)
        for name, (dimensions, values) in variables.items():
            *groups, short = name.split("/")
            group = dataset.createGroup("/".join(groups)) if groups else dataset
            for dimension, size in zip(dimensions, values.shape, strict=True):
                if dimension not in dataset.dimensions:
                    dataset.createDimension(dimension, None if dimension == unlimited else size)
            own = dict(attributes.get(short, {}))
            fill = own.pop("_FillValue", None)
            variable = group.createVariable(
                short, values.dtype.str[1:], dimensions, fill_value=fill, chunksizes=(chunks or {}).get(short)
            )
            variable.setncatts(own)
            variable.set_auto_maskandscale(False)  # packed values come packed
            variable[:] = values
    return path


def write_xy(path: Path, x: np.ndarray | None = None, y: np.ndarray | None = None, **options) -> Path:
    """Write `x` and `y` (time, nj, ni) as NetCDF."""
    dimensions = ("time", "nj", "ni")
    values = {"x": ramp() if x is None else x, "y": ramp(1000) if y is None else y}
    return write_netcdf(path, {name: (dimensions, value) for name, value in values.items()}, **options)


def read_all(source):
    """All selected samples of a source, in its order."""
    from mpitrain.data.samples import concatenate

    return concatenate([source.read(chunk) for chunk in source.chunks])


@contextmanager
def counted_reads() -> Iterator[Counter]:
    """How often each block of each variable is read of a source's files meanwhile, by path, variable and number.

    Of a variable that is not stored in blocks: each value.
    """
    from mpitrain.data.selection.source import OpenFiles

    reads, lock, get = Counter(), threading.Lock(), OpenFiles.get

    def counting(handles, record):
        file = get(handles, record)
        file.read_stored = partial(read, file)  # of this file alone, in place of its class's
        return file

    def read(file, name, slices):
        info = file.variables[name]
        lengths = info.chunk_shape or (1,) * len(info.shape)
        ends = [part.indices(size)[:2] for part, size in zip(slices, info.shape, strict=True)]
        blocks = (range(first // one, -(-stop // one)) for (first, stop), one in zip(ends, lengths, strict=True))
        with lock:
            reads.update((str(file.path), name, block) for block in itertools.product(*blocks))
        return type(file).read_stored(file, name, slices)

    with patch.object(OpenFiles, "get", counting):
        yield reads


def in_memory(folder: Path, data: Any, asked: Asked = Asked()) -> Path:  # noqa: B008
    """Hand data of a Python program over, as the functions of `mpitrain.python` do, and return what a run opens."""
    passing = folder / "mpitrain-data"
    passing.mkdir(exist_ok=True)
    write_variables(passing, variables_of(data, asked))
    return passing / VARIABLES_FILE
