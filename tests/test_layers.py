"""The house stands: imports point down, one room speaks to MPI, login nodes load little, and nothing grows large."""

from __future__ import annotations

import ast
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import PROJECT, launcher_environment

PACKAGE = PROJECT / "mpitrain"
FLOORS = {
    "__main__": 10,  # nothing but the door to cli
    "cli": 9,
    "launch": 8, "doctor": 8, "bench": 8, "verify": 8,
    "runs": 7, "export": 7,
    "inference": 6, "datatools": 6, "synthetic": 6,
    "train": 5, "native": 5,
    "models": 4, "observe": 4,
    "data": 3,
    "comm": 2,
    "cluster": 1,
    "config": 0, "cache": 0, "durable_files": 0, "errors": 0, "text_table": 0,
}  # fmt: skip
# The ground: single files that import nothing of the package, so that every room may use them.
GROUND = ("errors", "cache", "durable_files", "text_table", "__init__")
MESSAGE_PASSING = ("mpi4py", "torch.distributed", "torch._C._distributed_c10d")
HEAVY = ("torch", "mpi4py", "numpy", "netCDF4", "h5py", "matplotlib")

LONGEST_FILE_LINES, LONGEST_FUNCTION_LINES = 350, 60
MEDIAN_FUNCTION_LINES, NINETY_PERCENT_LINES = 10, 30
HELP_TIME_S = 0.3


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    """The room of a module: its folder in the package, or its own name at the top."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def imported_names(tree: ast.AST) -> Iterator[str]:
    """Everything that a module imports, inside functions too: `from a import b` gives both `a` and `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import; write the package's name"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms_imported(tree: ast.AST) -> set[str]:
    names = (name.split(".") for name in imported_names(tree) if name.startswith("mpitrain."))
    return {parts[1] for parts in names if parts[1] in FLOORS}


def upward_imports(room: str, source: str) -> list[str]:
    """Rooms that a module of `room` imports though they are neither its own, nor lower, nor the ground."""
    others = rooms_imported(ast.parse(source)) - {room}
    if room in GROUND:
        return sorted(others)
    return sorted(other for other in others if other not in GROUND and FLOORS[other] >= FLOORS[room])


def message_passing_imports(source: str) -> list[str]:
    names = imported_names(ast.parse(source))
    return sorted({top for name in names for top in MESSAGE_PASSING if f"{name}.".startswith(f"{top}.")})


def function_sizes(source: str) -> list[tuple[int, str]]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds))
    return [((node.end_lineno or 0) - node.lineno + 1, node.name) for node in functions]


def test_every_module_has_a_floor():
    unknown = {room_of(path) for path in modules()} - set(FLOORS) - {"__init__"}
    assert not unknown, f"rooms without a floor: {sorted(unknown)}"
    assert len(modules()) > 50, "the package was not found"


def test_imports_point_down():
    found = {str(path.relative_to(PROJECT)): upward_imports(room_of(path), path.read_text()) for path in modules()}
    assert {path: rooms for path, rooms in found.items() if rooms} == {}


@pytest.mark.parametrize(
    ("room", "source", "expected"),
    [
        ("data", "from mpitrain.runs.train_run import train", ["runs"]),
        ("data", "def f():\n    import mpitrain.models.icenet", ["models"]),
        ("data", "from mpitrain import train, comm", ["train"]),
        ("inference", "from mpitrain.doctor import check", ["doctor"]),
        ("models", "from mpitrain.observe.logs import open_rank_log", ["observe"]),
        ("cluster", "from mpitrain.comm.world import World", ["comm"]),
        ("errors", "from mpitrain.config import RunConfig", ["config"]),
        ("config", "from mpitrain.cluster.pmi import library_name", ["cluster"]),
        ("train", "from mpitrain.data.dataset.batches import Slice\nfrom mpitrain.train.trainer import Trainer", []),
        ("config", "from mpitrain.errors import ConfigError", []),
        ("cli", "from mpitrain import __version__\nfrom mpitrain.runs.train_run import train", []),
    ],
)
def test_an_upward_import_is_found(room, source, expected):
    assert upward_imports(room, source) == expected


def test_only_comm_speaks_to_a_message_passing_library():
    found = {
        str(path.relative_to(PROJECT)): message_passing_imports(path.read_text())
        for path in modules()
        if room_of(path) != "comm"
    }
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from mpi4py import MPI", ["mpi4py"]),
        ("def f():\n    import mpi4py.MPI", ["mpi4py"]),
        ("import torch.distributed as dist", ["torch.distributed"]),
        ("from torch import distributed", ["torch.distributed"]),
        ("from torch.distributed.tensor import DTensor", ["torch.distributed"]),
        ("import torch\nfrom torch.distributions import Normal", []),
    ],
)
def test_a_message_passing_import_is_found(source, expected):
    assert message_passing_imports(source) == expected


def loaded_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nimport json\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=launcher_environment(), capture_output=True, text=True, timeout=60, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "module", ["mpitrain.errors", "mpitrain.config", "mpitrain.cli.main", *sorted(
        f"mpitrain.cluster.{path.stem}" for path in (PACKAGE / "cluster").glob("*.py") if path.stem != "__init__"
    )]
)  # fmt: skip
def test_rooms_of_login_nodes_load_nothing_heavy(module):
    loaded = loaded_after(f"import {module}")
    assert module in loaded
    assert not loaded & set(HEAVY)


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["config", "--help"], ["config", "show"]])
def test_answers_of_login_nodes_load_nothing_heavy(arguments):
    run = f"from mpitrain.cli.main import main\ntry:\n    main({arguments!r})\nexcept SystemExit:\n    pass"
    loaded = loaded_after(run)
    assert "mpitrain.cli.main" in loaded
    assert not loaded & set(HEAVY)


def test_help_answers_at_once():
    def one_call() -> tuple[float, float]:
        before, started_s = os.times(), time.perf_counter()
        command = [sys.executable, "-m", "mpitrain", "--help"]
        done = subprocess.run(command, env=launcher_environment(), capture_output=True, timeout=60, check=True)
        wall_s, after = time.perf_counter() - started_s, os.times()
        assert b"train" in done.stdout
        return after.children_user + after.children_system - before.children_user - before.children_system, wall_s

    calls = [one_call() for _ in range(5)]
    # Processor time: what one call needs by itself. A neighbour's load stretches the wall time, of which the shortest
    # must still show that nothing is waited for.
    assert statistics.median(cpu_s for cpu_s, _ in calls) < HELP_TIME_S
    assert min(wall_s for _, wall_s in calls) < 2 * HELP_TIME_S


def test_files_are_short():
    lengths = {str(path.relative_to(PROJECT)): len(path.read_text().splitlines()) for path in modules()}
    assert {path: length for path, length in lengths.items() if length > LONGEST_FILE_LINES} == {}


def test_functions_are_short():
    sizes = sorted(size for path in modules() for size, _ in function_sizes(path.read_text()))
    longest = [
        (size, f"{path.relative_to(PROJECT)}:{name}")
        for path in modules()
        for size, name in function_sizes(path.read_text())
        if size > LONGEST_FUNCTION_LINES
    ]
    assert longest == []
    assert statistics.median(sizes) < MEDIAN_FUNCTION_LINES
    assert sizes[int(0.9 * len(sizes))] < NINETY_PERCENT_LINES


def test_a_long_function_is_counted_whole():
    source = "class A:\n    @property\n    def f(\n        self,\n    ):\n" + "        x = 1\n" * 60
    assert function_sizes(source) == [(63, "f")]
