"""`mpitrain verify`, run once by its public command; every test here reads what it left behind."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import Finished, launch
from cpp_program import cpp_program, read_arrays

from mpitrain.verify.cases import TRACE_STEPS, all_cases
from mpitrain.verify.compare import TABLES

RANKS, MORE_RANKS = (1, 3), (1, 2, 3, 4)  # with --full
VERIFY_TIMEOUT_S = 900.0
EXACT = [case.name for case in all_cases() if case.claim == "exact"]
CLOSE = [case.name for case in all_cases() if case.claim != "exact"]


class Verified(NamedTuple):
    """One run of the command."""

    done: Finished
    folder: Path
    report: dict[str, Any]
    rank_counts: tuple[int, ...]

    def case(self, name: str, ranks: int) -> dict[str, Any]:
        found = [case for case in self.report["cases"] if (case["case"], case["ranks"]) == (name, ranks)]
        assert len(found) == 1
        return found[0]


def rank_counts(config: pytest.Config) -> tuple[int, ...]:
    return MORE_RANKS if config.getoption("--full") else RANKS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "ranks" in metafunc.fixturenames:
        metafunc.parametrize("ranks", rank_counts(metafunc.config))


@pytest.fixture(scope="session")
def verified(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Verified:
    counts = rank_counts(request.config)
    cpp_program()  # built outside the time limit
    folder = tmp_path_factory.mktemp("verify")
    flags = ["--ranks", ",".join(map(str, counts)), "--output", str(folder)]
    done = launch(["-m", "mpitrain", "verify", *flags], timeout_s=VERIFY_TIMEOUT_S)
    report = folder / "verify.json"
    assert report.exists(), done.stderr
    return Verified(done, folder, json.loads(report.read_text()), counts)


@pytest.mark.lab
def test_all_claims_hold(verified: Verified) -> None:
    assert verified.done.returncode == 0, verified.done.stdout
    assert re.search(r"^PASSED in \d+ s$", verified.done.stdout, re.MULTILINE)
    assert verified.report["passed"] is True
    cases = [(case["case"], case["ranks"]) for case in verified.report["cases"]]
    assert sorted(cases) == sorted(itertools.product([*EXACT, *CLOSE], verified.rank_counts))


@pytest.mark.lab
@pytest.mark.parametrize("name", EXACT)
def test_exact_cases_have_no_other_bit(verified: Verified, name: str, ranks: int) -> None:
    case = verified.case(name, ranks)
    assert (case["claim"], case["passed"], case["first_difference"]) == ("exact", True, None)
    assert {(v["ulps"], v["different"], v["largest"]) for v in case["variables"].values()} == {(0, 0, 0.0)}


@pytest.mark.lab
@pytest.mark.parametrize("name", CLOSE)
def test_close_cases_are_an_independent_derivation(verified: Verified, name: str, ranks: int) -> None:
    case = verified.case(name, ranks)
    assert (case["passed"], case["first_difference"]) == (True, None)
    largest_allowed = max(entry.relative or 0.0 for entry in TABLES[case["claim"]])
    largest = max(v["largest"] for v in case["variables"].values())
    # Above zero: the plain engine does not share libtorch's arithmetic; equal bits would mean that it did not run.
    assert 0 < largest <= largest_allowed


@pytest.mark.lab
@pytest.mark.parametrize("name", [*EXACT, *CLOSE])
def test_every_stage_of_a_case_is_compared(verified: Verified, name: str, ranks: int) -> None:
    variables = verified.case(name, ranks)["variables"]
    parameters = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")
    last = len(read_arrays(next(verified.folder.glob(f"traces/{stem(name)}_np{ranks}.python.nc")))["loss"])
    steps = [step for step in TRACE_STEPS if step <= last]
    assert steps
    assert set(variables) == {
        *("selected_index", "partition_count", "partition_index", "input_mean", "input_std", "forward_step1"),
        *("loss", "loss_step1", "prediction", "jacobian"),
        *(f"{prefix}.{parameter}" for parameter in parameters for prefix in ("initial", "weights_final")),
        *(f"{kind}_step{n}.{p}" for kind in ("gradient", "weights") for n in steps for p in parameters),
    }


def stem(name: str) -> str:
    return re.sub(r"\W", "_", name.rpartition("/")[0])


@pytest.mark.lab
def test_the_runs_are_no_trivial_ones(verified: Verified) -> None:
    """Training moves the weights, the loss falls, and rank counts differ in `reference` and agree in `standard`."""
    traces = {
        (run, ranks): read_arrays(verified.folder / "traces" / f"{run}_np{ranks}.torch.nc")
        for run in ("reference", "standard__batch_64")
        for ranks in verified.rank_counts
    }
    for trace in traces.values():
        assert not np.array_equal(trace["initial.fc1.weight"], trace["weights_final.fc1.weight"])
        assert trace["loss"][-1] < 0.9 * trace["loss"][0]
        assert len(trace["selected_index"]) > 100
    results = {key: trace["weights_final.fc1.weight"].tobytes() for key, trace in traces.items()}
    assert len({results["standard__batch_64", ranks] for ranks in verified.rank_counts}) == 1
    assert len({results["reference", ranks] for ranks in verified.rank_counts}) == len(verified.rank_counts)


@pytest.mark.lab
def test_times_of_both_programs_are_reported(verified: Verified) -> None:
    for case in verified.report["cases"]:
        assert 1 < case["python_us_per_step"] < 1e7
        assert 1 < case["cpp_us_per_step"] < 1e7
    engines = {case["case"].rpartition("/")[2] for case in verified.report["cases"]}
    assert engines == {"torch", "plain"}
    assert verified.report["wall_time_s"] > 1
    assert set(verified.report["versions"]) >= {"torch", "mpi4py", "numpy", "Python", "mpitrain"}


@pytest.mark.lab
def test_the_report_names_cpu_torch_and_mpi_library(verified: Verified) -> None:
    seen = verified.report["machines"]
    assert {machine["program"] for machine in seen} == {"Python", "C++"}
    assert {rank for machine in seen for rank in machine["ranks"]} == set(range(max(verified.rank_counts)))
    for machine in seen:
        assert "; instruction sets: " in machine["cpu"]
        assert re.fullmatch(r"\d+\.\d+\S* \(\w+\)", machine["torch"])
        assert machine["mpi_library"]
        for fact in (machine["cpu"], machine["torch"], machine["mpi_library"]):
            assert fact in verified.done.stdout
    assert len({machine["cpu"] for machine in seen}) == 1  # one machine, and both programs ask its CPU alike
    assert all(case["machines"] for case in verified.report["cases"])


@pytest.mark.lab
def test_the_table_names_every_case_and_the_report_every_tolerance(verified: Verified) -> None:
    for name, ranks in itertools.product([*EXACT, *CLOSE], verified.rank_counts):
        assert re.search(rf"^{re.escape(name)} +{ranks} .* same$", verified.done.stdout, re.MULTILINE)
    assert str(verified.folder / "verify.json") in verified.done.stdout
    assert verified.report["tolerances"] == {claim: [asdict(one) for one in table] for claim, table in TABLES.items()}


@pytest.mark.lab
def test_progress_is_told_while_it_runs(verified: Verified) -> None:
    lines = verified.done.stderr.splitlines()
    headings = [line for line in lines if line.endswith(" cases")]
    assert headings == [f"{n} rank{'s' if n > 1 else ''}: {len(all_cases())} cases" for n in verified.rank_counts]
    assert sum(line.endswith("): same") for line in lines) == len(verified.report["cases"])
    assert "Traceback" not in verified.done.stderr
