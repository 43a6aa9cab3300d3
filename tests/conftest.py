"""What all tests share: real launches of the public command, small real files, and the reference case."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PROJECT = TESTS.parent
REFERENCE_CASE = TESTS / "data" / "reference_cases" / "north_h16"
# The one bound for what should have ended: many times what the slowest healthy machine takes.
TIMEOUT_S = 600.0
REFERENCE_EPOCHS = 200


@dataclass(frozen=True)
class Finished:
    """A launch that has ended."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def our_lines(self) -> list[str]:
        """The error lines that we printed, without the launcher's own."""
        return [line for line in self.stderr.splitlines() if line.startswith("mpitrain: ")]


LAB = TESTS / "lab"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="many tries where three are the rule")
    parser.addoption("--lab", action="store_true", help="also the tests below tests/lab and those marked lab")


def pytest_configure() -> None:
    # A shell starts what it runs in the background with SIGINT ignored, and programs would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # pip compiles what it installs. A checkout is compiled at its first import, unless this forbids it: then every
    # rank of every launch would compile it again, for a third of its time.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


@pytest.fixture(scope="session", autouse=True)
def own_configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests train with code of their own is not known to be the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("configuration")))
        yield


def pytest_report_header(config: pytest.Config) -> str:
    return "tier: default and lab" if config.getoption("--lab") else "tier: default; --lab adds the rest"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the lab out, also where the command line names a part of it."""
    return True if collection_path.is_relative_to(LAB) and not config.getoption("--lab") else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the single tests and cases that are marked lab."""
    if config.getoption("--lab"):
        return
    left_out = {item for item in items if item.get_closest_marker("lab")}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def tries(request: pytest.FixtureRequest) -> Callable[[int], int]:
    """How many tries to make of a stated number: three, or all with --full."""
    return lambda stated: stated if request.config.getoption("--full") else min(stated, 3)


def launcher_environment() -> dict[str, str]:
    """The environment of a launch: Open MPI as root and on few cores, and no display of colours."""
    allowed = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PYTHONWARNINGS": "error",
        # On a slow machine, lines that no test expects, and the end of ranks that are on their way.
        "MPITRAIN_STARTING_AFTER_S": f"{TIMEOUT_S:g}",
        "MPITRAIN_START_TIMEOUT_S": f"{TIMEOUT_S:g}",
        "PYTHONPATH": str(PROJECT),
    }
    return {**os.environ, **allowed}


def need_program(name: str) -> str:
    """Return the path of a program; skip the test, with the program's name, where it is not on the PATH."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} on the PATH")
    return found


def find_mpirun(python: str = sys.executable) -> str:
    """The mpirun next to `python` (a pip-installed MPI), else the one on the PATH."""
    beside = Path(python).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        pytest.skip("no mpirun next to Python or on the PATH: pip install '.[mpich]'")
    return found


# MPICH reads messages of some 10 KB and more from the other process's memory, by a system call that QEMU has not.
EMULATION_VARIABLES = {"MPIR_CVAR_CH4_CMA_ENABLE": "0"}


def launch(
    arguments: Sequence[str],
    num_ranks: int | None = None,
    cwd: Path | None = None,
    timeout_s: float = TIMEOUT_S,
    environ: dict[str, str] | None = None,
    python: str = sys.executable,
    emulator: Sequence[str] = (),
) -> Finished:
    """Run `python ARGUMENTS`, under mpirun if `num_ranks` is given, and wait for its end.

    Each rank is started by `emulator`, where there is one: what an emulated process starts is not emulated.
    A launch that does not end within `timeout_s` fails the test.
    """
    prefix = [] if num_ranks is None else [find_mpirun(python), "-np", str(num_ranks)]
    command = [*prefix, *emulator, python, *arguments]
    environ = {**(EMULATION_VARIABLES if emulator else {}), **(environ or {})}
    done = subprocess.run(
        command, cwd=cwd, env={**launcher_environment(), **environ}, capture_output=True, text=True,
        timeout=timeout_s, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return Finished(done.returncode, done.stdout, done.stderr)


def without_notes_on_cores(lines: Iterable[str]) -> list[str]:
    """Leave out the note that ranks share cores, which is right where the machine has one."""
    return [line for line in lines if " with 1 thread(s) each share " not in line]


def train(num_ranks: int | None, folder: Path, *settings: str, cwd: Path | None = None, **options: object) -> Finished:
    """Run the public training command into `folder`."""
    return launch(["-m", "mpitrain", "train", f"output.model_dir={folder}", *settings], num_ranks, cwd, **options)  # type: ignore[arg-type]


def losses_of(folder: Path) -> list[tuple[float, float | None]]:
    """The training and validation losses of a run folder's metrics, in order."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(record["train_loss"], record["validation_loss"]) for record in records]


@pytest.fixture(scope="session")
def small_history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small synthetic history file, written once."""
    from mpitrain.synthetic.history import write_synthetic_history

    path = tmp_path_factory.mktemp("history") / "cice_history.nc"
    write_synthetic_history(path, seed=3, num_latitudes=48, num_longitudes=72)
    return path


def train_reference_case(folder: Path, num_ranks: int, epochs: int = REFERENCE_EPOCHS, **options: object) -> None:
    """Train as the original program did, by the public command, into `folder`."""
    done = train(
        num_ranks,
        folder,
        "semantics=reference",
        f"data.data_path={REFERENCE_CASE / 'cice_history.nc'}",
        "model.hidden_size=16",
        f"model.initial_weights={REFERENCE_CASE / 'initial_weights.nc'}",
        f"training.epochs={epochs}",
        # Ranks that outnumber the cores wait without keeping them.
        environ={"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"},
        **options,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def reference_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Run folders of the reference case by number of ranks, trained once for all tests."""
    folder = tmp_path_factory.mktemp("reference_runs")
    for num_ranks in (1, 2, 3, 4):
        train_reference_case(folder / f"np{num_ranks}", num_ranks)
    return {num_ranks: folder / f"np{num_ranks}" for num_ranks in (1, 2, 3, 4)}
