"""The proof, a default run and the compiled kernels on several CPUs; the table at the end says which CPU did what.

Every rank of both programs tells which CPU it saw. What is not at hand is skipped and says so.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import TESTS, Finished, launch, losses_of
from cpp_program import cpp_program
from machine_matrix import EMULATED, MACHINES, Machine, instruction_sets_here

RANKS = 2
EMULATED_VERIFY = Path(__file__).with_name("emulated_verify.py")
TIMEOUT_S = 900.0  # emulation takes twenty times as long, on a machine that may be busy
SLOW = ("Intel Haswell",)  # with --full alone: another maker's CPU, emulated too, is the one that differs
REFERENCE = "reference/torch"
STANDARD = "standard, batch 64/torch"
FEW_EPOCHS = {REFERENCE: 10, STANDARD: 3}
MLP = (
    *("model.name=mlp", "model.hidden_layers=2", "model.hidden_size=64", "model.hidden_activation=gelu"),
    *("training.global_batch_size=64", "training.epochs=2"),
)
TRAININGS = {
    "default run": ("training.epochs=3",),
    "7-64-64-1 gelu, compiled": (*MLP, "training.engine=compiled"),
    "7-64-64-1 gelu, eager": (*MLP, "training.engine=eager"),
}


@dataclass(frozen=True)
class Trained:
    """One training: its final losses, and the hash of its weights as the summary prints it."""

    losses: tuple[float, float]
    weights_hash: str


class Table:
    """What was done on which machine; filled by the tests, printed at the end of the ranks."""

    def __init__(self) -> None:
        self.cpus: dict[str, str] = {}
        self._rows: list[tuple[str, str, str]] = []

    def add(self, machine: Machine, what: str, result: str) -> None:
        self._rows.append((machine.name, what, result))

    def lines(self) -> list[str]:
        widths = [max((len(row[column]) for row in self._rows), default=0) for column in range(2)]
        rows = [f"{name:<{widths[0]}}  {what:<{widths[1]}}  {result}" for name, what, result in self._rows]
        return [*(f"{name}: {cpu}" for name, cpu in self.cpus.items()), "", *rows]


@pytest.fixture(scope="session")
def table(request: pytest.FixtureRequest) -> Iterator[Table]:
    filled = Table()
    yield filled
    plugins = request.config.pluginmanager
    with plugins.get_plugin("capturemanager").global_and_fixture_disabled():
        plugins.get_plugin("terminalreporter").write("\n" + "\n".join(filled.lines()) + "\n")


@pytest.fixture(scope="session")
def trained(small_history: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Trained]]:
    """All trainings on a machine, by one launch: importing torch takes longest."""

    @functools.cache
    def on(name: str) -> dict[str, Trained]:
        return train_on(MACHINES[name], small_history, tmp_path_factory.mktemp("trained"))

    return on


def train_on(machine: Machine, history: Path, folder: Path) -> dict[str, Trained]:
    runs = [folder / f"run{number}" for number in range(len(TRAININGS))]
    jobs = [
        ["train", f"output.model_dir={run}", f"data.data_path={history}", *settings]
        for run, settings in zip(runs, TRAININGS.values(), strict=True)
    ]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    program = [str(TESTS / "train" / "many_runs.py"), str(folder / "jobs.json")]
    done = launch(program, RANKS, timeout_s=TIMEOUT_S, environ=machine.environ_of_launch, emulator=machine.emulator)
    said = "".join(path.read_text() for path in sorted(folder.glob("*.err")))
    assert done.returncode == 0, done.stderr + said
    assert [path.read_text() for path in folder.glob("*.code")] == ["0"] * RANKS * len(jobs), said
    assert (
        "exited without an error message" not in done.stderr
    )  # an emulator tells a process its own beginning otherwise
    return {what: _trained(folder, number, runs[number]) for number, what in enumerate(TRAININGS)}


def _trained(folder: Path, number: int, run: Path) -> Trained:
    summary = "".join(path.read_text() for path in folder.glob(f"{number:04d}.*.out"))
    found = re.search(r"^Weights +SHA-256 (\w+)", summary, re.MULTILINE)
    assert found, summary
    training, validation = losses_of(run)[-1]
    assert validation is not None
    return Trained((training, validation), found[1])


def verify_on(machine: Machine, case: str, folder: Path) -> tuple[Finished, dict[str, Any]]:
    """Verify one case, and return what was said and the report."""
    flags = ["--case", case, f"training.epochs={FEW_EPOCHS[case]}", "--ranks", str(RANKS)]
    cpp_program()
    program = [str(EMULATED_VERIFY), *machine.emulator, "--"] if machine.emulator else ["-m", "mpitrain", "verify"]
    done = launch(
        [*program, *flags, "--output", str(folder)],
        timeout_s=TIMEOUT_S,
        environ=machine.environ_of_launch,
    )
    assert (folder / "verify.json").exists(), done.stderr
    return done, json.loads((folder / "verify.json").read_text())


def skip_unless_full(request: pytest.FixtureRequest, why: str) -> None:
    if not request.config.getoption("--full"):
        pytest.skip(f"{why}; --full")


@pytest.mark.parametrize("case", FEW_EPOCHS)
@pytest.mark.parametrize("name", MACHINES)
def test_both_programs_compute_the_same(
    table: Table, tmp_path: Path, request: pytest.FixtureRequest, name: str, case: str
) -> None:
    machine = MACHINES[name]
    machine.skip_if_missing()
    if case == STANDARD:
        skip_unless_full(request, "the reference case is the one that takes vendors' functions")
    if name in SLOW:
        skip_unless_full(request, "takes a minute; another maker's CPU is the one that differs")
    done, report = verify_on(machine, case, tmp_path)
    table.add(machine, f"verify {case}", "same" if report["passed"] else report["cases"][0]["first_difference"])
    assert done.returncode == 0, done.stdout
    check_what_the_ranks_saw(machine, report["machines"], table)


def check_what_the_ranks_saw(machine: Machine, seen: list[dict[str, Any]], table: Table) -> None:
    """Both programs, on both ranks: the maker's CPU, by CPUID, and what torch uses of it."""
    assert [(one["program"], one["ranks"]) for one in seen] == [("Python", [0, 1]), ("C++", [0, 1])]
    assert len({one["cpu"] for one in seen}) == 1
    table.cpus[machine.name] = f"{seen[0]['cpu']}; torch {seen[0]['torch']} {seen[0]['vendor_settings']}".strip()
    for one in seen:
        assert one["cpu"].startswith(f"{machine.maker} family ")
        assert one["torch"].endswith(f"({machine.torch_uses})")
        assert one["mpi_library"]
        assert one["vendor_settings"] == " ".join(f"{key}={value}" for key, value in machine.environ.items())
    sets = seen[0]["cpu"].partition("instruction sets: ")[2].split()
    assert "avx2" in sets or not machine.emulator
    assert not machine.emulator or "avx512f" not in sets  # what is emulated is not this machine


def test_avx512_is_among_them() -> None:
    if "avx512f" not in instruction_sets_here():
        pytest.skip("AVX-512: not run, this CPU has none and the emulator neither")
    assert MACHINES["this machine"].torch_uses == "AVX512"


@pytest.mark.parametrize("name", MACHINES)
def test_trainings_run_and_the_kernels_agree_with_the_definition(
    table: Table, trained: Callable[[str], dict[str, Trained]], request: pytest.FixtureRequest, name: str
) -> None:
    """A kernel with instructions that the CPU has not would end its process here."""
    machine = MACHINES[name]
    machine.skip_if_missing()
    if name in SLOW:
        skip_unless_full(request, "takes a minute; the other emulated CPU has no AVX-512 either")
    results = trained(name)
    for what, result in results.items():
        table.add(machine, what, f"loss {result.losses[0]:.7g}, weights SHA-256 {result.weights_hash}")
    compiled, eager = results["7-64-64-1 gelu, compiled"], results["7-64-64-1 gelu, eager"]
    assert compiled.losses == pytest.approx(eager.losses, rel=1e-4)


@pytest.mark.parametrize("what", [what for what in TRAININGS if "eager" not in what])
def test_one_hash_on_every_machine(
    trained: Callable[[str], dict[str, Trained]], request: pytest.FixtureRequest, what: str
) -> None:
    left_out = () if request.config.getoption("--full") else SLOW
    at_hand = [name for name, machine in MACHINES.items() if name not in left_out and _is_at_hand(machine)]
    assert len(at_hand) > 1 or not _is_at_hand(MACHINES["AMD EPYC"])
    assert len({trained(name)[what].weights_hash for name in at_hand}) == 1


def _is_at_hand(machine: Machine) -> bool:
    try:
        machine.skip_if_missing()
    except pytest.skip.Exception:
        return False
    return True


@pytest.mark.parametrize("name", EMULATED)
def test_an_emulated_process_knows_its_own_cpu_and_flags(name: str) -> None:
    """/proc/cpuinfo would tell it of the host, and so would a compiler with -march=native."""
    machine = MACHINES[name]
    machine.skip_if_missing()
    code = (
        "import json; from mpitrain.cluster.cpu.compiler_flags import instruction_flags;"
        "from mpitrain.cluster.cpu.identity import detect_cpu; print(json.dumps(instruction_flags(detect_cpu())))"
    )
    done = launch(["-c", code], emulator=machine.emulator)
    flags = json.loads(done.stdout)
    assert "-march=x86-64" in flags
    assert "-mavx2" in flags
    assert not any(flag.startswith("-mavx512") for flag in flags)
