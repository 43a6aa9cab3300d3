"""A lazy Dataset of 2 GB from Python: no process holds half of it."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpitrain
from mpitrain.errors import StoppedError

xarray = pytest.importorskip("xarray")
MOST_MB = 1000
SHAPE = 500, 20, 250, 100  # 1 GB of float32


def resident_mb(process: Path, run: Path) -> int:
    """The largest resident memory that a process has had; 0 of one that is gone, or is no rank of the run."""
    with contextlib.suppress(OSError, KeyError, ValueError):
        program, *words = (process / "cmdline").read_bytes().split(b"\0")
        if b"python" in program and any(str(run).encode() in word for word in words):
            fields = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
            return int(fields["VmHWM"].split()[0]) // 1000
    return 0


def test_a_dataset_of_2_gb_is_trained_on_within_1_gb_a_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dask import array

    chunks = (4, *SHAPE[1:])
    x = array.random.RandomState(1).normal(size=SHAPE, chunks=chunks).astype("f4")
    axes = ("time", "z", "y", "x")
    lazy = xarray.Dataset({"u": (axes, x), "v": (axes, (x * x + x).astype("f4"))}, {"z": ("z", np.arange(20.0))})
    lazy["z"].attrs["axis"] = "Z"
    assert lazy.nbytes > 2e9
    found: dict[str, int] = {}
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.1):
            for process in Path("/proc").glob("[0-9]*"):
                found[process.name] = max(found.get(process.name, 0), resident_mb(process, tmp_path / "run"))

    watching = threading.Thread(target=look)
    watching.start()
    settings: dict[str, Any] = {"data.streaming": True, "training.max_steps": 200}
    try:
        with pytest.raises(StoppedError):
            mpitrain.train(
                lazy, inputs=["u[z=:]"], targets=["v[z=:]"], output=tmp_path / "run", ranks=2, quiet=True, **settings
            )
    finally:
        ended.set()
        watching.join()
    ranks = [number for number in found.values() if number]
    own = int(
        dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())["VmHWM"].split()[0]
    )
    with capsys.disabled():
        print(f"\nlargest resident memory in MB: ranks {ranks}, the calling process {own // 1000}")
    assert len(ranks) == 2
    assert max(ranks) <= MOST_MB
    assert own // 1000 <= MOST_MB
