"""What bits may depend on beside the program is written into every trace and named in the report."""

from __future__ import annotations

import re

import pytest

from mpitrain.cli.main import main
from mpitrain.verify.cases import all_cases, named_cases
from mpitrain.verify.machine_facts import SeenMachine, as_attributes, facts_of_this_rank, machines_of, merged
from mpitrain.verify.trace import Trace

HERE = {"cpu": "cpu A", "torch": "2 (AVX2)", "mpi_library": "MPI 5\nbuilt  then", "vendor_settings": ""}
THERE = {**HERE, "cpu": "cpu B", "vendor_settings": "MKL_CBWR=AVX2"}


def seen(program: str, *ranks: int, cpu: str = "cpu A", settings: str = "") -> SeenMachine:
    return SeenMachine(program, ranks, cpu, "2 (AVX2)", "MPI 5", settings)


def test_ranks_on_unlike_machines_are_told_apart():
    trace = Trace({}, as_attributes([HERE, THERE, HERE]))
    expected = (seen("C++", 0, 2), seen("C++", 1, cpu="cpu B", settings="MKL_CBWR=AVX2"))
    assert machines_of("C++", trace) == expected
    assert [str(machine) for machine in expected] == [
        "C++, ranks 0,2: cpu A; torch 2 (AVX2); MPI 5",
        "C++, rank 1: cpu B; torch 2 (AVX2); MPI 5; MKL_CBWR=AVX2",
    ]


def test_a_kind_of_machine_is_named_once_with_all_its_ranks():
    found = merged([seen("Python", 0), seen("C++", 0), seen("Python", 0, 1), seen("Python", 2, cpu="cpu B")])
    assert found == (seen("Python", 0, 1), seen("C++", 0), seen("Python", 2, cpu="cpu B"))


def test_a_rank_tells_its_cpu_torch_and_settings():
    facts = facts_of_this_rank({"ATEN_CPU_CAPABILITY": "avx2", "PATH": "/bin", "MKL_CBWR": "AUTO"})
    assert re.fullmatch(r".+; instruction sets: .+", facts["cpu"])
    assert re.fullmatch(r"\d+\.\d+.* \(\w+\)", facts["torch"])
    assert facts["mpi_library"]
    assert facts["vendor_settings"] == "ATEN_CPU_CAPABILITY=avx2 MKL_CBWR=AUTO"


def test_cases_by_name():
    assert [case.name for case in named_cases(["reference"], [])] == ["reference/torch", "reference/plain"]
    (case,) = named_cases(["standard, batch 64/torch"], ["training.epochs=3"])
    assert case.run.settings[-1] == "training.epochs=3"
    assert case.run.settings[:-1] == next(one for one in all_cases() if one.name == case.name).run.settings
    assert named_cases([], ["training.epochs=3"]) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--case", "refrence"], "--case 'refrence': no such case; there are 'reference/torch', "),
        (
            ["--case", "reference", "--config", "run.yaml"],
            "--case 'reference' is a case of the table, run.yaml is your",
        ),
        (["--case", "reference", "training.epochs=-1"], "training.epochs=-1"),
        (
            ["--case", "standard, full batch", "training.loss_function=mae"],
            "the C++ program has no training.loss_function;",
        ),
    ],
)
def test_what_cannot_be_asked_is_one_line(tmp_path, capsys, arguments, message):
    assert main(["verify", *arguments, "--output", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert not (tmp_path / "out").exists()
