"""The kernels' own arithmetic: one result for every compiler, level and CPU, and functions as exact as they claim."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from networks import network_settings

from mpitrain.cluster.cpu.identity import detect_cpu
from mpitrain.models.build import build_model
from mpitrain.models.convolutional.graph import field_graph_of
from mpitrain.train.compiled import build
from mpitrain.train.compiled.fields import FieldNetwork

HERE = Path(__file__).parent
# In units in the last place, as functions.hpp states them.
STATED = {"exponential": 1.0, "tanh": 1.4, "erf": 1.7}
NETWORKS = {
    "gelu": ("float", "7,64,64,1", "gelu", "identity", "mse"),
    "tanh, float64": ("double", "5,19,2", "tanh", "sigmoid", "huber"),
    "batch norm and dropout": ("float", "7,24,24,1", "relu", "identity", "mse", "0.2", "9"),
    "layer norm, silu, dropout, residual": ("float", "7,17,17,17,1", "silu", "identity", "mse", "0.1", "0", "1", "1"),
}
# Settings, and rows and columns of a field, which is continued to a multiple of what its levels halve.
FIELDS = {
    "cnn": ({"name": "cnn", "hidden_layers": 2, "hidden_size": 9, "periodic": True, "kernel_size": 5}, (5, 27)),
    "unet, silu": ({"name": "unet", "hidden_size": 5, "hidden_activation": "silu", "dropout": 0.2}, (5, 9)),
    "unet, batch norm": ({"name": "unet", "hidden_size": 4, "periodic": True, "batch_norm": True}, (6, 7)),
}
QEMU = {"Haswell": "qemu-x86_64 -cpu Haswell", "EPYC": "qemu-x86_64 -cpu EPYC", "aarch64": "qemu-aarch64"}
# compiler, level, instructions, emulator: with and without fused multiply-add, wide and narrow registers
FEW = [
    ("g++", "-O3", "native", None),
    ("g++", "-O1", "x86-64", None),
    ("clang++", "-O3", "x86-64-v3", "Haswell"),
    ("aarch64-linux-gnu-g++", "-O3", "armv8-a", "aarch64"),
]
LEVELS = ("-O1", "-O3")
ALL = [
    *(("g++", level, "x86-64-v3", "EPYC") for level in LEVELS),
    *(("clang++", level, cpu, None) for level in LEVELS for cpu in ("x86-64", "x86-64-v3", "native")),
    ("g++", "-O1", "native", None),
    ("g++", "-O3", "x86-64", "Haswell"),
    ("aarch64-linux-gnu-g++", "-O1", "armv8-a", "aarch64"),
]


def macros_of(network):
    if network in FIELDS:
        settings, shape = FIELDS[network]
        graph = field_graph_of(build_model(network_settings(**settings), 3, 2, 0))
        return FieldNetwork(graph, shape, "huber", "float32").macros()
    names = ("REAL", "LAYER_SIZES", "HIDDEN", "OUTPUT", "LOSS", "DROPOUT", "BATCH_NORM", "LAYER_NORM", "RESIDUAL")
    return [f"-D{name}={value}" for name, value in zip(names, NETWORKS[network], strict=False)]


def compiled(source, target, compiler, network, *flags):
    """Build a program of the tests with the flags of the kernels, but for level and instructions."""
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    macros = macros_of(network)
    own = [flag for flag in build._FLAGS if flag not in ("-O3", "-shared", "-fPIC")]
    command = [compiler, *own, *flags, *macros, f"-I{build._KERNELS}", str(HERE / source), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def trained(folder, network, compiler, level, cpu, where):
    flags = (level, f"-march={cpu}", *(("-static",) if "aarch64" in compiler else ()))
    program = compiled("kernel_run.cpp", folder / f"{compiler}{level}{cpu}", compiler, network, *flags)
    emulator = QEMU[where].split() if where else []
    if emulator and shutil.which(emulator[0]) is None:
        pytest.skip(f"no {emulator[0]}")
    return subprocess.run([*emulator, program], capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(detect_cpu().architecture != "x86_64", reason="the programs are for x86-64, or emulated on it")
@pytest.mark.parametrize("network", [*NETWORKS, *FIELDS])
def test_one_result_however_the_kernels_are_built(network, tmp_path, request):
    few = FEW if network in ("gelu", "unet, silu") else FEW[:2]
    cases = [*FEW, *ALL] if request.config.getoption("--full") else few
    results = {case: trained(tmp_path, network, *case) for case in cases}
    assert len(set(results.values())) == 1, results
    first, last = map(float, re.findall(r"(?:loss|to) ([\d.]+)", results[cases[0]]))
    # It learns, of fields in fewer steps: no hash of infinities.
    assert 0.1 < last < (0.95 if network in FIELDS else 0.8) * first


def test_the_programs_hash_sees_one_fused_product(tmp_path):
    """With contraction left to the compiler the result is another one."""
    one = trained(tmp_path, "gelu", "g++", "-O3", "native", None)
    flags = ("-O3", "-march=native", "-ffp-contract=fast")
    if "fma" not in (detect_cpu().instruction_sets or ()):
        pytest.skip("this CPU has no such instruction")
    program = compiled("kernel_run.cpp", tmp_path / "contracted", "g++", "gelu", *flags)
    assert subprocess.run([program], capture_output=True, text=True, check=True).stdout != one


@pytest.mark.parametrize("network", list(NETWORKS)[:2])
def test_functions_are_as_exact_as_stated(network, tmp_path, request):
    program = compiled("kernel_functions.cpp", tmp_path / "functions", "g++", network, "-O2", "-march=native")
    stride = "1" if request.config.getoption("--full") else "997"
    words = subprocess.run([program, stride], capture_output=True, text=True, check=True).stdout.split()
    errors = dict(zip(words[:6:2], map(float, words[1:6:2]), strict=True))
    assert {name: error <= STATED[name] for name, error in errors.items()} == dict.fromkeys(STATED, True), errors
    assert all(error > 0.5 for error in errors.values())  # else nothing was measured
    name, mismatches, tried = words[6:]
    assert (name, int(mismatches)) == ("fused", 0)
    assert int(tried) > 40_000
