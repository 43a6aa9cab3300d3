"""`mpitrain bench simulate`: clusters read and rendered, sums and times in the simulator, curves, and the command."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PROJECT, launch

from mpitrain.bench.simulated import prediction
from mpitrain.bench.simulated.cluster import Cluster, read_cluster
from mpitrain.bench.simulated.platform import render_hosts, render_platform
from mpitrain.bench.simulated.prediction import (
    Point,
    Simulated,
    half_communication,
    points_of,
    with_efficiencies,
)
from mpitrain.bench.simulated.program import SimulatedStep, Simulator, open_simulator, simulate
from mpitrain.bench.simulated.report import MOST_ROWS
from mpitrain.bench.simulated.workloads import Workload, computing_case, workload_of
from mpitrain.bench.step_cases import ENGINES, ScaledRun, StepCase, network_of
from mpitrain.bench.step_results import StepResult, summarise
from mpitrain.cli.main import main
from mpitrain.errors import ConfigError

PNG = b"\x89PNG"
RUN = ScaledRun(network_of("icenet"), ENGINES["compiled-fixed"], 1024)
US = 1e-6
# Without any cost but computing, as far as a platform can say so.
NO_COST = {"network_latency_us": 0.0, "network_bandwidth_gb_s": 1e12, "memory_latency_us": 0.0}

PLATFORM = """\
<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="cluster" prefix="node-" suffix="" radical="0-2" speed="1Gf" core="48"
           lat="0.75us" bw="12.5GBps" sharing_policy="SPLITDUPLEX"
           loopback_lat="0.2us" loopback_bw="8GBps"/>
</platform>
"""


@pytest.fixture(scope="module")
def simulator() -> Simulator:
    """Not skipped where SimGrid is missing: tests/run.sh installs it."""
    return open_simulator()


def step_us(simulator: Simulator, cluster: Cluster, step: SimulatedStep) -> float:
    times = simulate(simulator, cluster, step)["step_us"]
    assert len(times) == step.num_steps
    assert max(times) == pytest.approx(min(times), rel=1e-6), "nothing changes from step to step"
    return float(times[0])


def test_a_cluster_in_simgrids_words() -> None:
    cluster = Cluster(64, 48, 2, 1.5, 12.5, 0.2, 8.0)
    assert render_platform(cluster, 3) == PLATFORM
    assert render_hosts(cluster, 5) == "node-0\nnode-0\nnode-1\nnode-1\nnode-2\n"


def described(folder: Path, text: str) -> Path:
    path = folder / "cluster.yaml"
    path.write_text(text)
    return path


def test_a_description_and_its_defaults(tmp_path: Path) -> None:
    shortest = "nodes: 3\nnode: {cores: 48}\nnetwork: {latency_us: 1.5, bandwidth_gb_s: 12.5}\n"
    assert read_cluster(described(tmp_path, shortest)) == Cluster(3, 48, 32, 1.5, 12.5, 0.1, None, 1.0)
    whole = (
        "nodes: 2\nnetwork: {latency_us: 0, bandwidth_gb_s: 1e2}\n"
        "node: {cores: 6, ranks: 2, memory_latency_us: 0.3, memory_bandwidth_gb_s: 7, core_speed: 1.5}\n"
    )
    assert read_cluster(described(tmp_path, whole)) == Cluster(2, 6, 2, 0.0, 100.0, 0.3, 7.0, 1.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodes: 0", ":1: nodes: 0 is not allowed; give a whole number, 1 to 65536"),
        ("nodes: 1.5", ":1: nodes: 1.5 is not allowed; give a whole number"),
        ("nodes: true", ":1: nodes: true is not allowed"),
        ("nodes: 2\nnode: {cores: many}", ":2: node.cores: many is not allowed"),
        ("nodes: 2\nnode:\n  cores: 4\n  ranks: 3", ":4: node.ranks: 3 is not allowed; give a power of two"),
        ("network: {latency_us: -1}", ":1: network.latency_us: -1 is not allowed; give a number, at least 0"),
        ("network: {bandwidth_gb_s: 0}", ":1: network.bandwidth_gb_s: 0 is not allowed; give a number above 0"),
        ("network: {bandwidth_gb_s: .inf}", "is not allowed; give a number above 0"),
        ("node: {memory_bandwidth_gb_s: [1]}", "memory_bandwidth_gb_s: [1] is not allowed"),
        ("hosts: 4", ":1: hosts: unknown key; give some of nodes, node.cores, "),
        ("nodes: 2", ": node.cores: missing; a cluster needs nodes, node.cores, network.latency_us, "),
        ("- 2", "the file holds a list; write sections of keys"),
        ("nodes: [", "not valid YAML"),
        ("", ": nodes: missing"),
    ],
)
def test_what_is_wrong_with_a_description_is_one_line(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_cluster(described(tmp_path, text))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def tree_sum(num_rows: int, row_length: int) -> np.ndarray[Any, Any]:
    """The sum of rows 1 / (1 + v + i) in the tree ((0,1),(2,3)), ...; an odd row at the end waits a level."""
    v, i = np.arange(num_rows)[:, None], np.arange(row_length)
    rows = list(np.float32(1) / (1 + v + i).astype(np.float32))
    while len(rows) > 1:
        pairs = [rows[k] + rows[k + 1] for k in range(0, len(rows) - 1, 2)]
        rows = pairs + rows[2 * len(pairs) :]
    return rows[0]


@pytest.mark.parametrize(
    ("num_ranks", "ranks_per_node", "num_rows"),
    [
        *(
            (1, 1, 1),
            (1, 1, 8),
            (2, 2, 2),
            (2, 1, 8),
            (3, 4, 8),
            (3, 3, 3),
            (4, 2, 4),
            (4, 1, 16),
            (8, 8, 8),
            (8, 2, 8),
        ),
        *((64, 64, 64), (64, 8, 64), (64, 1, 128), (3, 2, 3), (4, 2, 7)),
        # runs of rows that are no subtrees: as many rows as nothing divides, a node that is not full, three nodes
        *((3, 1, 8), (3, 2, 8), (5, 2, 8), (6, 2, 8), (8, 4, 12), (64, 8, 100)),
    ],
)
def test_the_sum_has_the_trees_bits_on_all_ranks(
    simulator: Simulator, num_ranks: int, ranks_per_node: int, num_rows: int
) -> None:
    cluster = Cluster(64, 2, ranks_per_node, 1.0, 10.0, 0.1, 10.0)
    answer = simulate(simulator, cluster, SimulatedStep(num_ranks, num_rows, 5, US, US, 1, adds_numbers=True))
    assert answer["same_on_all_ranks"]
    assert [np.float32(value) for value in answer["sum"]] == tree_sum(num_rows, 5).tolist()


@pytest.mark.parametrize(("num_ranks", "ranks_per_node"), [(1, 1), (2, 2), (8, 1), (8, 4), (64, 8)])
def test_a_network_without_cost_leaves_computing_alone(
    simulator: Simulator, num_ranks: int, ranks_per_node: int
) -> None:
    cluster = Cluster(64, ranks_per_node, ranks_per_node, **NO_COST, memory_bandwidth_gb_s=1e12)
    found = step_us(simulator, cluster, SimulatedStep(num_ranks, num_ranks, 1000, 123.456 * US, 0.0))
    assert found == pytest.approx(123.456, rel=1e-5)


@pytest.mark.parametrize("num_nodes", [2, 4, 16, 128])
def test_leaders_take_log2_rounds(simulator: Simulator, num_nodes: int) -> None:
    latency_us, gb_s, row_us, row_length = 1.5, 12.5, 3.0, 25_000
    cluster = Cluster(num_nodes, 1, 1, latency_us, gb_s, 0.0, 1e12)
    found = step_us(simulator, cluster, SimulatedStep(num_nodes, num_nodes, row_length, 10 * US, row_us * US))
    message_us = latency_us + 4 * row_length / gb_s * 1e-3
    # A rank that is alone on its node has its sum at hand; each round adds the other half's.
    assert found == pytest.approx(10 + math.log2(num_nodes) * (message_us + row_us), rel=1e-3)


@pytest.mark.parametrize("num_ranks", [2, 8, 32])
def test_ranks_of_a_node_meet_and_add_all_rows(simulator: Simulator, num_ranks: int) -> None:
    cluster = Cluster(1, num_ranks, num_ranks, 1.0, 1.0, 0.2, 1e3)
    found = step_us(simulator, cluster, SimulatedStep(num_ranks, num_ranks, 100, 10 * US, 0.5 * US))
    # Each copies its row and adds all; those who arrive together take turns, each for the latency.
    assert found == pytest.approx(10 + 0.5 * (1 + num_ranks) + 0.2 * num_ranks, rel=1e-3)


def test_ranks_of_several_nodes_wait_for_their_leader(simulator: Simulator) -> None:
    cluster = Cluster(2, 4, 4, 2.0, 1e12, 0.0, 1e12)
    found = step_us(simulator, cluster, SimulatedStep(8, 8, 100, 10 * US, 0.5 * US))
    # The leader copies its row, adds the 4 of its node and the other node's sum, and copies the total; then the others
    # do, while the leader is already in the next step: it waits for them there.
    assert found == pytest.approx(10 + 0.5 * (1 + 4 + 1 + 1 + 1) + 2.0, rel=1e-3)


def test_leaders_of_uneven_nodes_give_their_blocks_to_all(simulator: Simulator) -> None:
    # Rows 0, 1, then 2, 3, 4, then 5, 6, 7: blocks of 1, 2 and 2 subtrees.
    latency_us, gb_s, row_us, row_length = 1.5, 10.0, 3.0, 25_000
    cluster = Cluster(3, 1, 1, latency_us, gb_s, 0.0, 1e12)
    found = step_us(simulator, cluster, SimulatedStep(3, 8, row_length, 30 * US, row_us * US))
    # The leaders with 3 rows compute for longest, then add these; into each cable go, and from it come, 4 blocks.
    assert found == pytest.approx(30 + (3 + 5) * row_us + latency_us + 4 * 4 * row_length / gb_s * 1e-3, rel=1e-3)


@pytest.mark.parametrize(("num_ranks", "times"), [(1, 1), (2, 1), (4, 2), (8, 4)])
def test_ranks_that_share_cores_take_turns(simulator: Simulator, num_ranks: int, times: int) -> None:
    cluster = Cluster(1, 2, 8, **NO_COST, memory_bandwidth_gb_s=1e12)
    found = step_us(simulator, cluster, SimulatedStep(num_ranks, num_ranks, 1, 100 * US, 0.0))
    assert found == pytest.approx(100 * times, rel=1e-5)


def test_the_engine_adds_as_many_rows_as_is_said() -> None:
    kernel = (PROJECT / "mpitrain" / "train" / "compiled" / "kernels" / "dense_step.hpp").read_text()
    assert f"constexpr int largest_tree_rows = {MOST_ROWS};" in kernel


def test_what_a_rank_computes() -> None:
    assert [workload_of(1024, ranks, 8) for ranks in (1, 2, 8, 16, 1024)] == [
        Workload(8, 128), Workload(4, 128), Workload(1, 128), Workload(1, 64), Workload(1, 1),
    ]  # fmt: skip
    assert workload_of(100, 4, 8) == Workload(2, 13)
    case = computing_case(RUN, Workload(4, 128))
    assert (case.num_ranks, case.global_batch_size, case.num_samples) == (1, 512, 65536)
    assert "training.virtual_ranks=4" in case.settings
    assert case.key != computing_case(RUN, Workload(2, 256)).key


def test_a_batch_is_shared_as_far_as_it_goes() -> None:
    points = points_of(RUN, [512, 1024, 2048])
    assert [(point.scaling, point.num_ranks) for point in points] == [
        ("strong", 512), ("strong", 1024), ("weak", 512), ("weak", 1024), ("weak", 2048),
    ]  # fmt: skip
    assert points[-1].batch_size == 2048 * 1024


def curve(scaling: str, *of_ranks: tuple[int, float, float]) -> list[Simulated]:
    return [Simulated(Point(RUN, scaling, ranks), 1, computing, step) for ranks, computing, step in of_ranks]


def test_efficiency_and_where_communication_takes_half() -> None:
    strong = with_efficiencies(curve("strong", (1, 100, 100), (2, 50, 80), (4, 25, 50), (8, 12, 30)))
    assert [one.speedup for one in strong] == [1, 1.25, 2, pytest.approx(10 / 3)]
    assert [one.efficiency for one in strong] == [1, 0.625, 0.5, pytest.approx(5 / 12)]
    assert [one.communication for one in strong] == [0, 0.375, 0.5, 0.6]
    assert half_communication(strong) == 4
    weak = with_efficiencies(curve("weak", (2, 100, 100), (8, 100, 125)))
    assert [(one.speedup, one.efficiency) for one in weak] == [(1, 1), (pytest.approx(3.2), 0.8)]
    assert half_communication(weak) is None
    # Once more than half, then less again: it is from the last such number on.
    assert half_communication(curve("weak", (1, 1, 4), (2, 3, 4), (4, 1, 4))) == 4


def made_up(cases: Sequence[StepCase], *_: Any) -> list[StepResult]:
    """A rank computes 10 us and 0.1 us a row of its samples; a row takes 0.5 us to add; real steps take 200 us."""
    spent = {"computing": 0.9, "reading": 0.0, "communicating": 0.1, "waiting": 0.0, "adding_us": 1.5}
    facts = {"engine": "compiled", "nodes": 1, "row_bytes": 4000}
    return [
        summarise(case, [[10 + 0.1 * float(case.global_batch_size) if " in " in case.engine.name else 200.0]], None,
                  [spent], facts)
        for case in cases
    ]  # fmt: skip


CLUSTER = "nodes: 512\nnode: {cores: 8}\nnetwork: {latency_us: 2, bandwidth_gb_s: 4}\n"


def test_curves_to_4096_ranks_and_the_error_beside_real_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prediction, "measure_steps", made_up)
    files = ["--json", str(tmp_path / "f.json"), "--plot", str(tmp_path / "f.png")]
    flags = ["--cluster", str(described(tmp_path, CLUSTER)), "--validate", "--networks", "icenet", "--batch", "1024"]
    assert main(["bench", "simulate", *flags, *files]) == 0
    printed = capsys.readouterr().out
    assert (tmp_path / "f.png").read_bytes().startswith(PNG)
    record = json.loads((tmp_path / "f.json").read_text())
    rows = {(row["scaling"], row["ranks"]): row for row in record["rows"]}
    powers = [1 << power for power in range(13)]
    assert list(rows) == [*(("strong", ranks) for ranks in powers[:11]), *(("weak", ranks) for ranks in powers)]
    assert {row["label"] for row in (record, *record["rows"], *record["validation"])} == {"simulated"}
    one, many = rows["weak", 1], rows["weak", 4096]
    assert one["simulated_us"] == pytest.approx(112.4) == one["measured_computing_us"]
    # 9 rounds between 512 nodes, of 2 us, 1 us of sending and 0.5 us of adding; in the node 1 + 8 + 1 + 1 rows and two
    # meetings of 8 times 0.1 us.
    assert many["simulated_us"] == pytest.approx(112.4 + 9 * 3.5 + 11 * 0.5 + 1.6, rel=0.002)
    assert many["efficiency"] == pytest.approx(one["simulated_us"] / many["simulated_us"])
    assert many["nodes"] == 512
    errors = {(row["scaling"], row["ranks"]): row["error_percent"] for row in record["validation"]}
    assert list(errors) == [(scaling, ranks) for scaling in ("strong", "weak") for ranks in (1, 2, 4, 8)]
    assert errors["strong", 1] == pytest.approx(100 * (112.4 / 200 - 1))
    assert "simulated: icenet, compiled-fixed, strong scaling: one batch on all ranks" in printed
    assert "simulated: communication takes half of a step or more from 32 ranks on" in printed
    assert "messages among all ranks" not in printed
    # 4000 bytes in 0.5 us
    assert "network 2 us, 4 GB/s; memory 0.1 us, 8 GB/s as measured on 2 ranks here" in printed
    assert re.search(r"icenet, compiled-fixed +strong +1 +200\.0 +112\.4 +-44 %", printed)


def test_where_two_ranks_add_by_messages_the_memory_is_assumed_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def by_messages(cases: Sequence[StepCase], *_: Any) -> list[StepResult]:
        return [replace(one, spent={**one.spent, "adding_us": 0.0}) for one in made_up(cases)]

    monkeypatch.setattr(prediction, "measure_steps", by_messages)
    flags = ["--networks", "icenet", "--ranks", "1,16", "--batch", "16"]
    assert main(["bench", "simulate", "--cluster", str(described(tmp_path, CLUSTER)), *flags]) == 0
    printed = capsys.readouterr().out
    assert "note: icenet, compiled-fixed: engine compiled adds 4000 B by messages among all ranks; what is" in printed
    assert "memory 0.1 us, 10 GB/s as assumed: give node.memory_bandwidth_gb_s" in printed
    text = CLUSTER.replace("cores: 8", "cores: 8, memory_bandwidth_gb_s: 20")
    assert main(["bench", "simulate", "--cluster", str(described(tmp_path, text)), *flags]) == 0
    assert "memory 0.1 us, 20 GB/s as described" in capsys.readouterr().out
    large = described(tmp_path, CLUSTER.replace("nodes: 512", "nodes: 2").replace("cores: 8", "cores: 256"))
    assert main(["bench", "simulate", "--cluster", str(large), *flags[:2], "--ranks", "1,512", *flags[4:]]) == 0
    words = "note: with more than 128 ranks a node the engine sends messages among all ranks instead"
    assert words in capsys.readouterr().out


def test_the_command_measures_and_simulates_a_users_settings(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(
        "model: {name: mlp, hidden_size: 8, hidden_layers: 1}\ntraining: {batch_size: 32, virtual_ranks: 4}\n"
        "variables: {input_variables: [a, b, c], output_variables: [d, e]}\n"
    )
    flags = ["--cluster", str(described(tmp_path, CLUSTER)), "--ranks", "1,2,16", "--rounds", "1", "--longest", "0.02"]
    command = ["-m", "mpitrain", "bench", "simulate", "run.yaml", "training.reduction=any", *flags]
    done = launch([*command, "--json", "f.json"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "f.json").read_text())
    assert [(row["scaling"], row["ranks"], row["global_batch_size"]) for row in record["rows"]] == [
        ("strong", 1, 32), ("strong", 2, 32), ("strong", 16, 32), ("weak", 1, 32), ("weak", 2, 64), ("weak", 16, 512),
    ]  # fmt: skip
    # 8 (3 + 1) weights of one layer and 2 (8 + 1) of the other; loss, weight and stop flag.
    assert [(row["engine_used"], row["row_bytes"]) for row in record["measured"]] == [("compiled", 4 * (32 + 18 + 3))]
    assert all(0 < row["measured_computing_us"] <= row["simulated_us"] * 1.0001 for row in record["rows"])
    assert "simulated: run, auto-any, weak scaling: a batch on each rank" in done.stdout


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "give --cluster FILE.yaml, a described cluster, or --validate, or both"),
        (["--cluster", "none.yaml"], "none.yaml: no such file"),
        (["--cluster", "cluster.yaml", "--ranks", "1,48"], "--ranks 1,48: give powers of two, such as 1,64,4096"),
        (["--cluster", "cluster.yaml", "--ranks", "8192"], "--ranks 8192: 512 nodes of 8 ranks hold 4096; give fewer"),
        (["--validate", "--ranks", "4"], "--ranks 4: those of the cluster; give --cluster FILE.yaml too"),
        (["--validate", "--json", "nowhere/x.json"], "--json nowhere/x.json: there is no folder"),
        (["--validate", "--networks", "unet"], "--networks unet: give icenet, or units of each level"),
        (["--validate", "semantics=reference"], "semantics=reference: one step takes all samples"),
        (["--validate", "training.batch_size=full"], "full: give --batch, the samples of the batch"),
        (["--validate", "nothing.yaml"], "nothing.yaml: no such file"),
    ],
)
def test_bad_input_is_one_line(
    flags: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    described(tmp_path, CLUSTER)
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "simulate", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_without_simgrid_the_command_to_install_it_is_named(tmp_path: Path) -> None:
    environ = {"PATH": str(Path(sys.executable).parent)}
    done = launch(["-m", "mpitrain", "bench", "simulate", "--validate"], cwd=tmp_path, environ=environ)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "no smpirun on the PATH" in done.stderr
    assert "apt-get install libsimgrid-dev" in done.stderr
