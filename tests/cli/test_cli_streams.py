"""Streams that lack letters of the data: ASCII in batch systems, Latin-1 on old clusters. Every command, every rank."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import netCDF4
import numpy as np
import pytest
from conftest import TIMEOUT_S, find_mpirun, launcher_environment

import mpitrain

NAMES = "variables.input_variables=[a]", "variables.output_variables=[b]"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    a = np.random.default_rng(43).normal(size=200)
    with netCDF4.Dataset(str(tmp_path / "units.nc"), "w") as file:
        file.createDimension("obs", 200)
        for name, values, units in (("a", a, "µg m⁻³"), ("b", 2 * a, "°C")):
            file.createVariable(name, "f8", ("obs",)).units = units
            file[name][:] = values
    return tmp_path / "units.nc"


def test_what_a_stream_lacks_is_escaped_and_files_have_it(data: Path) -> None:
    train = "train", "--data", "units.nc", *NAMES, "model.name=mlp", "model.hidden_size=3", "--epochs", "1"
    predict = "predict", "run", "--data", "units.nc", "--output", "out.nc"
    shown = {"ascii": r"\u207b\xb3", "latin-1": r"\u207b³", "ascii:surrogateescape": r"\u207b\xb3"}
    for encoding, escaped in shown.items():
        for ranks, words in (
            (None, ("data", "inspect", "units.nc")), (None, ("data", "stats", "units.nc", *NAMES)),
            (2, (*train, "--output", "run", "--overwrite")), (2, (*predict, "--overwrite")),
        ):  # fmt: skip
            command = [sys.executable, "-m", "mpitrain", *map(str, words)]
            launcher = [] if ranks is None else [find_mpirun(), "-np", str(ranks)]
            environ = {**launcher_environment(), "PYTHONIOENCODING": encoding}
            done = subprocess.run(
                [*launcher, *command],
                cwd=data.parent,
                env=environ,
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
                stdin=subprocess.DEVNULL,  # which a launcher reads
            )
            assert done.returncode == 0, (encoding, words, done.stderr)
            if words[1] == "inspect":
                assert escaped in done.stdout.decode(encoding.partition(":")[0])
    with netCDF4.Dataset(str(data.parent / "out.nc")) as file:
        assert file["b_predicted"].units == "°C"
    assert "µg m⁻³" in (data.parent / "run" / "report.html").read_text(encoding="utf-8")


def test_the_stream_of_a_python_program_is_not_replaced(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    mpitrain.train(str(data), inputs=["a"], targets=["b"], output=data.parent / "run", epochs=1)
    assert sys.stdout is stream
    stream.flush()
    assert rb" \xb0C, bias" in stream.buffer.getvalue()  # type: ignore[attr-defined]
