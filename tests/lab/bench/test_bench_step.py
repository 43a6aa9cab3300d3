"""`mpitrain bench step` and `scaling`: figures computed right, and the commands on one and two ranks."""

from __future__ import annotations

import json
import platform
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import pytest
from conftest import Finished, launch
from cpp_program import cpp_program

from mpitrain.bench import step
from mpitrain.bench.configured import configured_run
from mpitrain.bench.step import check_not_launched, cpp_flags_of
from mpitrain.bench.step_cases import DEFAULT_ENGINES, ENGINES, StepCase, network_of, step_count, step_network_of
from mpitrain.bench.step_job import affordable_steps
from mpitrain.bench.step_results import scaling_of, summarise, with_ratios, with_shares_of_peak
from mpitrain.cli.bench.command import scaling_cases
from mpitrain.cli.main import main
from mpitrain.cluster.cpu.compiler_flags import INSTRUCTION_SETS
from mpitrain.config import load_run_config
from mpitrain.config.training import ComputeSection
from mpitrain.errors import LaunchError, UserError
from mpitrain.train.compiled import peak
from mpitrain.train.compiled.build import build_source
from mpitrain.train.compiled.peak import measure_peak, operations_of

TIMEOUT_S = 300.0
PNG = b"\x89PNG"


def case_of(engine: str, batch: int | str = 64, num_ranks: int = 1) -> StepCase:
    return StepCase(network_of("icenet"), batch, num_ranks, ENGINES[engine], 1024, 40, 4)


def test_medians_spread_and_ratios_of_made_up_figures() -> None:
    base = summarise(case_of("compiled-any"), [[9, 10, 90], [20, 20, 20], [40, 39, 41]], None)
    assert (base.round_medians_us, base.median_us, base.num_steps) == ((10, 20, 40), 20, 3)
    assert base.spread == (40 - 10) / 20
    assert (base.p10_us, base.p90_us) == (pytest.approx(9.8), pytest.approx(50.8))
    # Round by round 2, 3 and 4 times as long; then 5, 1 and 20 times, where the ratio of the medians is 50 / 20.
    slow = summarise(case_of("ddp-loop"), [[20], [60], [160]], None)
    slower = summarise(case_of("eager-any"), [[50], [20], [800]], None)
    other_ranks = summarise(case_of("ddp-loop", num_ranks=2), [[20], [60], [160]], None)
    lame = summarise(case_of("cpp-torch-fixed"), [[20]], "ended early")
    results = with_ratios([base, slow, slower, other_ranks, lame], {"icenet": "compiled-any"})
    assert [result.ratio for result in results] == [1, 3, 5, None, None]
    row = results[2].as_json()
    assert (row["median_us"], row["steps_per_second"], row["ratio"]) == (50, 20000, 5)
    assert (row["engine"], row["ranks"], row["global_batch_size"], row["error"]) == ("eager-any", 1, 64, None)
    assert results[4].as_json()["error"] == "ended early"


def test_share_of_the_peak_of_made_up_figures() -> None:
    # 7-16-1: 112 + 16 weights, three products of two operations each, and none back to the inputs.
    assert operations_of((7, 16, 1), 10) == 10 * 2 * (3 * 128 - 112)
    assert operations_of((5, 3), 1) == 2 * 2 * 15
    one, two = (summarise(case_of("compiled-any", num_ranks=ranks), [[17.408]], None) for ranks in (1, 2))
    full = summarise(case_of("compiled-any", "full"), [[17.408]], None)
    field = StepCase(step_network_of("cnn"), 64, 1, ENGINES["eager-any"], 1024, 40, 4)
    results = with_shares_of_peak([one, two, full, summarise(field, [[10]], None)], peak=4e9)
    assert [result.share_of_peak for result in results] == [pytest.approx(0.5), pytest.approx(0.25), 8, None]
    assert results[0].as_json()["share_of_peak"] == pytest.approx(0.5)
    assert with_shares_of_peak([one], peak=0)[0].share_of_peak is None


def test_the_peak_is_one_of_this_kind_of_machine() -> None:
    # From one number a cycle at 0.5 GHz, of an emulation, to two vectors of 16 at 10 GHz, two operations each.
    assert 1e8 < measure_peak() < 2 * 2 * 16 * 10e9


def test_steps_and_peak_are_those_of_the_instruction_set_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def noted(name: str, macros: Sequence[str] = (), instruction_set: str = "native") -> Path:
        built.append((name, instruction_set))
        return build_source(name, macros, instruction_set)

    monkeypatch.setattr(peak, "build_source", noted)
    assert measure_peak("x86-64" if platform.machine() == "x86_64" else "armv8-a") > 1e7
    assert built == [("peak", "x86-64" if platform.machine() == "x86_64" else "armv8-a")]
    case = replace(case_of("compiled-any"), instruction_set="x86-64-v3")
    assert "compute.instruction_set=x86-64-v3" in case.settings
    assert get_args(ComputeSection.model_fields["instruction_set"].annotation) == INSTRUCTION_SETS


def test_speed_up_and_efficiency_of_made_up_figures() -> None:
    one = summarise(case_of("compiled-fixed", 64, 1), [[100], [200]], None)
    four = summarise(case_of("compiled-fixed", 64, 4), [[50], [100]], None)
    strong = scaling_of([one, four], "strong")
    assert [(result.speedup, result.efficiency) for result in strong] == [(1, 1), (2, 0.5)]
    weak = scaling_of([one, summarise(case_of("compiled-fixed", 256, 4), [[125], [250]], None)], "weak")
    assert [(result.speedup, result.efficiency) for result in weak] == [
        (1, 1),
        (pytest.approx(3.2), pytest.approx(0.8)),
    ]
    assert weak[1].as_json()["efficiency"] == pytest.approx(0.8)
    assert scaling_of([one, summarise(case_of("compiled-fixed", 64, 4), [], "no")], "weak")[1].efficiency is None


def test_cases_of_scaling_give_each_rank_a_batch_or_share_one() -> None:
    options = Namespace(networks="icenet", settings=[], engines=None, batch=512, steps=None, warm_up=None)
    cases = scaling_cases(options, [1, 2, 4])
    assert [case.global_batch_size for case in cases["strong"]] == [512, 512, 512]
    assert [case.global_batch_size for case in cases["weak"]] == [512, 1024, 2048]
    assert cases["strong"][0].key == cases["weak"][0].key
    assert {case.num_samples // case.num_ranks for case in cases["weak"]} == {65536}


def test_a_case_is_the_same_in_the_programs_own_terms() -> None:
    case = StepCase(network_of("7-64-64-1"), "full", 2, ENGINES["cpp-torch-original"], 4096, 12, 3)
    assert cpp_flags_of(case) == {
        "benchmark": 12, "warmup": 3, "engine": "torch", "reduction": "original", "network": "7-64-64-1",
        "hidden-activation": "relu", "output-activation": "none", "batch-size": "full", "samples": 4096,
    }  # fmt: skip
    assert {"model.hidden_layers=2", "model.hidden_size=64", "training.global_batch_size=full"} <= set(case.settings)


def test_large_batches_are_timed_for_fewer_steps() -> None:
    assert [step_count(batch, 400_000) for batch in (64, 4096, "full")] == [4000, 97, 8]
    assert [affordable_steps(steps, [1e6, 2e6, 9e6], 10) for steps in (2, 4, 400)] == [2, 4, 5]
    assert affordable_steps(400, [9e6], 10) == 3


@pytest.mark.parametrize("name", ["7-64-32-1", "6-64-1", "7-64", "7-x-1", "7-0-1", "unet", ""])
def test_a_network_that_cannot_be_measured(name: str) -> None:
    with pytest.raises(UserError, match=r"--networks .*give icenet, or the layer sizes"):
        network_of(name)


def test_ranks_cannot_start_ranks() -> None:
    check_not_launched({})
    with pytest.raises(
        LaunchError, match="one of 2 ranks, but this command starts its own ranks: run it without mpirun"
    ):
        check_not_launched({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"})


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["step", "--engines", "compiled"], "--engines compiled: unknown; allowed are compiled-any, "),
        (["step", "--baseline", "fast"], "fast: unknown; allowed are"),
        (["step", "--ranks", "2,0"], "--ranks 2,0: give numbers of ranks"),
        (["step", "--batch", "64,all"], "--batch 64,all: give numbers of samples"),
        (["step", "--batch", "64", "--samples", "32"], "--batch 64: larger than --samples 32"),
        (["scaling", "--json", "nowhere/x.json"], "--json nowhere/x.json: no folder"),
        (
            ["scaling", "--launcher", "no-such-launcher -x"],
            "no no-such-launcher on the PATH; give a command such as 'srun",
        ),
        (["scaling", "--launcher", "srun '"], "--launcher srun ': No closing quotation; give a command such as 'srun"),
        (["scaling", "none.yaml"], "none.yaml: no such file"),
        (["scaling", "model.size=3"], "command line: model.size: unknown key"),
        (["scaling", "training.epochs=2", "--engines", "eager-any"], "--engines eager-any: not allowed with settings"),
        (["scaling", "data.data_path=none.nc"], "none.nc: no such file"),
    ],
)
def test_bad_input_is_one_line(flags: list[str], words: str, tmp_path: Path) -> None:
    done = launch(["-m", "mpitrain", "bench", *flags], cwd=tmp_path)
    assert (done.returncode, len(done.our_lines)) == (2, 1), done.stderr
    assert words in done.our_lines[0]


class Measured:
    """One call of the command `bench step`."""

    def __init__(self, folder: Path, *flags: str) -> None:
        command = ["-m", "mpitrain", "bench", "step", *flags, "--json", str(folder / "f.json")]
        self.done: Finished = launch(command, timeout_s=TIMEOUT_S)
        assert self.done.returncode == 0, self.done.stderr
        self.record: dict[str, Any] = json.loads((folder / "f.json").read_text())


def check_rows(rows: list[dict[str, Any]], baseline: str) -> None:
    """Every engine's row is there, and says the same in each of its figures."""
    assert sorted(row["engine"] for row in rows) == sorted(DEFAULT_ENGINES)
    for row in rows:
        assert row["error"] is None, row
        assert row["round_medians_us"] == [row["median_us"]]
        assert row["p10_us"] <= row["median_us"] <= row["p90_us"]
        assert row["ratio"] > 0
        assert (row["steps_a_round"], row["samples"], row["global_batch_size"]) == (5, 512, 64)
        check_spent(row)
    assert {row["ratio"] for row in rows if row["engine"] == baseline} == {1.0}


def check_spent(row: dict[str, Any]) -> None:
    """Of our engines, and of no others, all of a step went into something; one rank alone does not communicate."""
    parts = {kind: part for kind, part in row["spent"].items() if kind != "adding_us"}
    assert bool(parts) == (
        row["engine"].split("-")[0] in ("compiled", "traced", "eager", "ddp") and "engine_used" in row
    )
    if not parts:
        return
    # Of few steps not exactly: the kernel measures adding in one step of 16, the first and slowest among them.
    assert sum(parts.values()) > 0.99
    if row["ranks"] == 1:
        assert parts["communicating"] + parts["waiting"] < 0.01
    elif row["engine"].startswith("compiled"):
        assert parts["communicating"] > 0
        assert row["spent"]["adding_us"] > 0


def test_every_engine_is_measured_on_one_rank(tmp_path: Path) -> None:
    cpp_program()  # built outside the time limit
    flags = ("--ranks", "1", "--rounds", "1", "--steps", "5", "--samples", "512", "--build")
    flags += ("--plot", str(tmp_path / "f.png"))
    measured = Measured(tmp_path, "--networks", "icenet", *flags)
    rows = measured.record["rows"]
    check_rows(rows, measured.record["baselines"]["icenet"])
    # On any machine: 8 calls of libtorch, each with its overhead, against one loop without any.
    medians = {row["engine"]: row["median_us"] for row in rows}
    assert medians["cpp-plain-any"] < medians["cpp-torch-fixed"]
    assert "not measured" not in measured.done.stdout
    assert (tmp_path / "f.png").read_bytes().startswith(PNG)


def test_two_ranks_measure_what_they_can_and_the_rest_is_told(tmp_path: Path) -> None:
    flags = ("--ranks", "2", "--rounds", "1", "--steps", "5", "--samples", "512", "--batch", "64,63")
    measured = Measured(tmp_path, "--networks", "7-8-8-1", *flags)
    rows = {size: [row for row in measured.record["rows"] if row["global_batch_size"] == size] for size in (64, 63)}
    check_rows(rows[64], measured.record["baselines"]["7-8-8-1"])
    assert "7-8-8-1, batch 64, 2 ranks" in measured.done.stdout
    odd = {row["engine"]: row for row in rows[63]}
    assert {name for name, row in odd.items() if row["error"] is None} == {
        "compiled-any", "compiled-fixed", "eager-any", "eager-fixed", "torch-loop",
    }  # fmt: skip
    assert (odd["ddp-loop"]["median_us"], odd["ddp-loop"]["ratio"]) == (None, None)
    assert odd["compiled-any"]["median_us"] > 0
    told = "not measured: 7-8-8-1, batch 63, 2 ranks, ddp-loop: batch 63: not divisible by 2 ranks"
    assert told in measured.done.stdout


def test_one_process_with_threads_is_measured_beside_ranks(tmp_path: Path) -> None:
    """JAX where it is installed, and the line on how to install it elsewhere; its Adam trains as ours does."""
    flags = ("--ranks", "1,2", "--rounds", "1", "--steps", "5", "--samples", "256", "--batch", "64")
    engines = ("--engines", "compiled-fixed,jax-scan,torch-compile", "--baseline", "compiled-fixed")
    measured = Measured(tmp_path, "--networks", "7-8-8-1,cnn", *flags, *engines)
    rows = {(row["network"], row["ranks"], row["engine"]): row for row in measured.record["rows"]}
    assert "jax-scan supports only chains of dense layers" in measured.done.stdout
    for ranks in (1, 2):
        assert rows["7-8-8-1", ranks, "torch-compile"]["median_us"] > 0
        assert rows["cnn", ranks, "jax-scan"]["median_us"] is None
        if find_spec("jax") is None:
            assert "jax-scan needs JAX: python -m pip install 'mpitrain[bench]'" in measured.done.stdout
        else:
            assert rows["7-8-8-1", ranks, "jax-scan"]["median_us"] > 0
            assert f", jax {version('jax')}" in measured.done.stdout


def test_networks_that_are_no_chains_are_measured_beside_plain_pytorch(tmp_path: Path) -> None:
    flags = ("--ranks", "1", "--rounds", "1", "--steps", "3", "--batch", "8", "--engines", "traced-fixed,torch-loop")
    flags += ("--samples", "16")
    layers = ("dropout", "batch_norm", "layer_norm", "residual")
    names = (*(f"7-8-8-1+{layer}" for layer in layers), "residual", "layer_norm", "cnn")
    measured = Measured(tmp_path, "--networks", ",".join(names), *flags)
    rows = {(row["network"], row["engine"]): row for row in measured.record["rows"]}
    assert {key for key, row in rows.items() if row["error"]} == {("7-8-8-1+batch_norm", "traced-fixed")}
    assert all(rows[name, "torch-loop"]["ratio"] == 1 for name in names)
    assert rows["cnn", "traced-fixed"]["ratio"] > 0


def test_believed_nodes_are_measured_beside_one_and_the_bound_is_printed(tmp_path: Path) -> None:
    engines = ("--engines", "compiled-any,torch-loop", "--networks", "icenet")
    measured = Measured(tmp_path, "--nodes", "2", "--ranks", "1,2", "--rounds", "1", "--steps", "5", *engines)
    rows = {(row["ranks"], row["engine"], row["nodes"]): row for row in measured.record["rows"]}
    assert set(rows) == {
        (1, "compiled-any", 1), (1, "torch-loop", 1), (2, "compiled-any", 1), (2, "torch-loop", 1),
        (2, "compiled-any", 2), (2, "exchange", 2),
    }  # fmt: skip
    assert all(row["error"] is None and row["median_us"] > 0 for row in rows.values())
    assert rows[2, "compiled-any", 1]["ratio"] == 1
    us = [rows[2, "compiled-any", 2]["median_us"], rows[2, "compiled-any", 1]["median_us"],
          rows[2, "exchange", 2]["median_us"]]  # fmt: skip
    (line,) = [line for line in measured.done.stdout.splitlines() if line.startswith("compiled-any, 2 nodes: ")]
    assert line == (
        f"compiled-any, 2 nodes: {us[0]:.1f} us; one node {us[1]:.1f} + 1.2 x exchange {us[2]:.1f} = "
        f"{us[1] + 1.2 * us[2]:.1f} us"
    )


@pytest.mark.parametrize("name", ["7-8-8-1+silu", "icenet+dropout", "resnet", "7-8-9-1"])
def test_a_network_that_is_unknown_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"--networks .*: give icenet, or the layer sizes"):
        step_network_of(name)


def test_scaling_has_a_row_for_each_kind_and_number_of_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command with launches that are played: each number of ranks once a round, all its cases together."""
    played: list[tuple[int, list[int]]] = []

    def launch_with_made_up_times(mpirun: str, num_ranks: int, command: list[str], variables: dict[str, str]) -> str:
        job = json.loads(Path(command[-1]).read_text())
        assert (variables, job["nodes"]) == ({}, 1)
        batches = [case["global_batch_size"] for case in job["cases"]]
        number = len(played) // 2  # the round
        played.append((num_ranks, batches))
        answers = [{"step_us": [(100 + 100 * number) * batch / 128 / num_ranks + 10 * num_ranks]} for batch in batches]
        Path(job["results"]).write_text(json.dumps(answers))
        return ""

    monkeypatch.setattr(step, "run_under_mpi", launch_with_made_up_times)
    files = ["--json", str(tmp_path / "f.json"), "--plot", str(tmp_path / "f.png")]
    flags = ["--networks", "icenet", "--ranks", "1,2", "--rounds", "2", "--steps", "4", "--batch", "128"]
    assert main(["bench", "scaling", *flags, *files]) == 0
    # The case of one rank is measured once for both kinds; the order of a round's cases turns.
    assert played == [(1, [128]), (2, [128, 256]), (1, [128]), (2, [256, 128])]
    assert (tmp_path / "f.png").read_bytes().startswith(PNG)
    rows = {(row["scaling"], row["ranks"]): row for row in json.loads((tmp_path / "f.json").read_text())["rows"]}
    assert {key: row["round_medians_us"] for key, row in rows.items()} == {
        ("strong", 1): [110, 210], ("strong", 2): [70, 120], ("weak", 1): [110, 210], ("weak", 2): [120, 220],
    }  # fmt: skip
    assert (rows["strong", 2]["global_batch_size"], rows["weak", 2]["global_batch_size"]) == (128, 256)
    assert rows["weak", 1]["efficiency"] == rows["strong", 1]["efficiency"] == 1
    assert rows["weak", 2]["efficiency"] == pytest.approx(2 / (120 / 110 + 220 / 210))
    assert "weak" in capsys.readouterr().out


def test_a_users_settings_decide_on_network_engine_and_batch(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "model: {name: mlp, hidden_size: 8, hidden_layers: 1}\ntraining: {batch_size: 32, engine: eager}\n"
        "data: {validation_split: 0.5, split: time, streaming: true}\ncompute: {backend: mpi}\n"
        "variables: {input_variables: [a, b, c], output_variables: [d, e]}\n"
    )
    flags = ["--ranks", "1,2", "--rounds", "1", "--steps", "3", "--json", "f.json"]
    done = launch(["-m", "mpitrain", "bench", "scaling", "mine.yaml", "training.reduction=any", *flags], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "f.json").read_text())["rows"]
    assert [(row["scaling"], row["ranks"], row["global_batch_size"]) for row in rows] == [
        ("strong", 1, 32), ("strong", 2, 32), ("weak", 1, 32), ("weak", 2, 64),
    ]  # fmt: skip
    assert {(row["network"], row["engine"], row["engine_used"], row["nodes"]) for row in rows} == {
        ("mine", "eager-any", "eager", 1)
    }
    assert all(row["error"] is None and row["median_us"] > 0 for row in rows)
    assert all((row["spent"]["communicating"] > 0) == (row["ranks"] == 2) for row in rows)
    kinds = ("computing", "reading", "communicating", "waiting")
    assert [sum(row["spent"][kind] for kind in kinds) for row in rows] == pytest.approx([1] * 4)


def test_a_users_settings_stay_but_for_what_chooses_samples() -> None:
    words = ("training.threads_per_rank=3", "compute.backend=gloo", "data.validation_split=0.5", "data.split=time")
    run = configured_run(None, [*words, "data.streaming=true", "data.thin_fraction=0.5"], None)
    case = run.case(run.batch_size, 2)
    config = load_run_config(None, case.settings).config
    assert (config.training.threads_per_rank, config.compute.backend) == (3, "gloo")
    data = config.data
    assert (data.validation_split, data.split, data.streaming, data.thin_fraction) == (0, "random", False, 1)
    assert (config.training.global_batch_size, case.num_samples) == (64, 2 * 65536)


def test_a_users_files_give_the_shape_of_the_samples(small_history: Path) -> None:
    points = configured_run(None, [f"data.data_path={small_history}"], 128)
    assert (points.network.sample_shape, points.batch_size) == ((7,), 128)
    assert (len(points.network.input_names), len(points.network.target_names)) == (7, 1)
    fields = configured_run(None, ["model.name=unet", "data.samples=fields", f"data.data_path={small_history}"], None)
    assert (fields.network.sample_shape, fields.batch_size) == ((7, 48, 72), 64)
