"""The cost of `mt_add`, and of a trainer beside the model, printed: `pytest -s -m machine` shows it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import find_mpirun
from settings_files import EXAMPLE, compiler_flags

from mpitrain.datatools.collection import write_collection
from mpitrain.native.toolchain import find_next_to_python

SETTINGS = (
    "output: speed.nc\nsamples: 100000\ninputs:\n- {{name: x, levels: {}}}\ntargets:\n- {{name: y, levels: {}}}\n"
)


@pytest.mark.parametrize(("num_inputs", "num_targets"), [(24, 9), (6, 1)])
def test_nanoseconds_a_column(tmp_path, num_inputs, num_targets):
    write_collection(tmp_path)
    (tmp_path / "speed.yaml").write_text(SETTINGS.format(num_inputs, num_targets))
    sources = [str(Path(__file__).parent / "programs" / "speed.c"), "mpitrain_collection.c", "-o", "speed"]
    compiler = str(find_next_to_python("mpicc"))
    subprocess.run([compiler, "-std=c99", "-O3", *sources, *compiler_flags(tmp_path)], check=True, cwd=tmp_path)
    command = [find_mpirun(), "-np", "1", "./speed", "speed.yaml", str(num_inputs), str(num_targets)]
    done = subprocess.run(command, check=True, cwd=tmp_path, text=True, stdout=subprocess.PIPE)
    print(done.stdout)
    assert done.stdout.startswith("status 0")


def test_the_trainers_step_beside_the_models(tmp_path, request):
    """The example's line: us of a step of the shallow-water model, and of the eight steps of training beside it."""
    if not request.config.getoption("--full"):
        pytest.skip("times an example: give --full")
    for path in EXAMPLE.iterdir():
        shutil.copy(path, tmp_path)
    write_collection(tmp_path)
    of_trainer = ["--format", "trainer", "--collection", "collect.yaml", "--output", "tendency.cpp"]
    in_c, in_cpp = (str(find_next_to_python(name)) for name in ("mpicc", "mpicxx"))
    for command in (
        [sys.executable, "-m", "mpitrain", "export", "tendency.yaml", *of_trainer],
        [in_cpp, "-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-c", "tendency.cpp"],
        [in_c, "-std=c99", "-O3", "-c", "train_inside.c", "mpitrain_collection.c", *compiler_flags(tmp_path)],
        [in_cpp, "train_inside.o", "mpitrain_collection.o", "tendency.o", *compiler_flags(tmp_path), "-o", "model"],
    ):
        subprocess.run(command, check=True, cwd=tmp_path, stdout=subprocess.PIPE)
    command = [find_mpirun(), "-np", "1", "./model", "collect.yaml", "1", "1"]
    done = subprocess.run(command, check=True, cwd=tmp_path, text=True, stdout=subprocess.PIPE, timeout=300)
    print(done.stdout)
    assert re.match(r"\d+ us a step, \d+ us training beside it; loss \S+, weights SHA-256 [0-9a-f]{12}\n", done.stdout)
