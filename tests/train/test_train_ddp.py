"""DistributedDataParallel over our mpi backend and gloo: the eager engine's gradients, and what each option does."""

import json

import pytest
from conftest import TESTS, launch

BACKENDS = ["mpi", "gloo"]


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    """What ddp_program.py has seen on each of two ranks."""
    folder = tmp_path_factory.mktemp("ddp")
    done = launch([str(TESTS / "train" / "ddp_program.py"), str(folder)], 2)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "facts.json").read_text())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "check",
    [
        "plain",
        "clipped",
        "accumulated",
        "static graph",
        "bucket view",
        "batch norm",
        "sync batch norm",
        "sync batch norm, own buffers",
        "sync batch norm, checkpointed",
        "unused parameters, found",
        "all at once",
    ],
)
def test_gradients_and_losses_are_the_eager_engine_s(facts, backend, check):
    one, other = facts[backend][check]
    assert one["gradient"] == other["gradient"] <= 1e-12
    assert one["loss"] == other["loss"] <= 1e-12
    assert one["sha256"] == other["sha256"]


@pytest.mark.lab
@pytest.mark.parametrize("backend", BACKENDS)
def test_running_statistics_are_the_batch_s_where_synchronised_and_the_root_s_else(facts, backend):
    for check in ("sync batch norm", "sync batch norm, own buffers", "all at once"):
        assert max(seen["running mean"] for seen in facts[backend][check]) < 1e-14
    assert min(seen["running mean"] for seen in facts[backend]["batch norm"]) > 1e-3


@pytest.mark.lab
@pytest.mark.parametrize("backend", BACKENDS)
def test_broadcast_buffers_makes_running_statistics_the_root_s(facts, backend):
    with_root, without = facts[backend]["buffers"], facts[backend]["own buffers"]
    assert with_root[0] == with_root[1]
    assert without[0]["steps"][0] == without[1]["steps"][0], "all start alike"
    assert without[0]["steps"][1:] != without[1]["steps"][1:]
    assert without[0]["validation"] != without[1]["validation"]
    assert without[0]["steps"] == with_root[0]["steps"]
    assert with_root[0]["loss"] != without[0]["loss"]


@pytest.mark.lab
@pytest.mark.parametrize("backend", BACKENDS)
def test_unused_parameters_are_named_in_one_line(facts, backend):
    for own_gradients, views in facts[backend]["unused parameters"]:
        kind, text, num_steps = own_gradients
        assert (kind, num_steps) == ("ConfigError", 1)
        assert text == (
            "distributed.find_unused_parameters=false: network.sometimes.weight network.sometimes.bias did not "
            "contribute to this step's loss; set it to true, or use every parameter in each step"
        )
        assert views[0] == "ConfigError"
        assert "find_unused_parameters=false: some parameters did not contribute" in views[1]


@pytest.mark.lab
@pytest.mark.parametrize("backend", BACKENDS)
def test_options_reach_the_wrapper(facts, backend):
    for rank in (0, 1):
        assert facts[backend]["bucket views"][rank] == [6, 1], "gradients and the memory that holds them"
        assert facts[backend]["static graph is set"][rank] == [True, False]


@pytest.mark.lab
def test_buckets_and_accumulation_decide_how_often_is_sent(facts):
    for large, small in facts["mpi"]["bucket calls"]:
        assert large == [1, 1, 1]
        assert small[-1] >= 2
    for once, accumulated in facts["mpi"]["accumulated calls"]:
        assert once == accumulated == [1, 1, 1]


@pytest.mark.lab
@pytest.mark.parametrize("backend", BACKENDS)
def test_half_precision_on_the_wire_changes_bits_by_its_rounding(facts, backend):
    for seen in facts[backend]["half precision"]:
        assert 1e-6 < seen["gradient"] < 5e-3
        if backend == "mpi":  # gloo's calls are made where Python sees none
            assert seen["sent"] == [["torch.float32"], ["torch.float16"]]


@pytest.mark.lab
@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_is_the_seed_s_alone(facts, backend):
    one, other = facts[backend]["random numbers"]
    assert one == other
    assert one[0] == one[1] != one[2]


@pytest.mark.lab
@pytest.mark.parametrize("backend", BACKENDS)
def test_mixed_precision_narrows_the_computation_only(facts, backend):
    for seen in facts[backend]["narrow"]:
        assert 1e-4 < seen["gradient"] < 0.1
        assert seen["dtype"] == "torch.float32"
