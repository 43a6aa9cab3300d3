"""The sums that the ranks of a node take in shared memory: with a core for each rank, and with fewer cores."""

import json

import pytest
from conftest import TESTS, launch


def facts_of(tmp_path_factory, num_ranks):
    folder = tmp_path_factory.mktemp("node_sum")
    done = launch([str(TESTS / "train" / "node_sum_program.py"), str(folder)], num_ranks)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "facts.json").read_text())


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return facts_of(tmp_path_factory, 1)


@pytest.fixture(
    scope="module", params=[pytest.param(2, marks=pytest.mark.lab), 3, pytest.param(8, marks=pytest.mark.lab)]
)
def several(request, tmp_path_factory):
    return facts_of(tmp_path_factory, request.param)


@pytest.mark.parametrize("way", ["fixed", "fixed, one by one", "no room", "two buffers", "less than two buffers"])
def test_every_rank_has_the_bits_of_one_rank_alone(alone, several, way):
    (expected,) = alone["fixed"]
    for seen in several[way]:
        assert seen["shares"] == (way not in ("no room", "less than two buffers"))
        for what in ("weights", "optimizer", "losses", "ends"):
            assert seen[what] == expected[what]


WAYS = ["", " clipped", " descent", " dropped out", " batch norm", " float64", ", one by one", ", profiled"]


@pytest.mark.parametrize("way", WAYS)
def test_ranks_that_update_shares_have_the_bits_of_one_rank_that_updates_all(alone, several, way):
    (expected,) = alone[f"wide{way}"]
    for seen in several[f"wide{way}"]:
        assert seen["shares"]
        assert seen["by_shares"]
        for what in ("weights", "optimizer", "average", "losses", "ends"):
            assert seen[what] == expected[what]
    assert (expected["weights"] == alone["wide"][0]["weights"]) == (way in ("", ", one by one", ", profiled"))


def test_an_epoch_is_one_call_and_its_steps_are_those_of_single_calls(alone, several):
    for facts in (alone, several):
        many, one_step_per_call = facts["fixed"][0], facts["fixed, one by one"][0]
        assert (many["calls"], one_step_per_call["calls"]) == (3, len(one_step_per_call["losses"]))
    assert several["no room"][0]["calls"] == len(several["fixed"][0]["losses"]), "a step that sends is a call"


def test_joined_slices_agree_to_rounding(alone, several):
    (expected,) = alone["fixed"]
    assert len({json.dumps([seen["weights"], seen["losses"], seen["ends"]]) for seen in several["any"]}) == 1
    assert several["any"][0]["losses"] == pytest.approx(expected["losses"], rel=1e-4)
    assert several["any"][0]["ends"][-1] == pytest.approx(expected["ends"][-1], rel=1e-4)


def test_a_stop_asked_on_one_rank_is_heard_by_all_after_one_step(alone, several):
    for seen in (*alone["stopped"], *several["stopped"]):
        assert seen["calls"] == [[3, False], [1, True]]
        assert seen["weights"] == alone["stopped"][0]["weights"]
    for seen in several["wide stopped"]:
        assert seen["calls"] == [[3, False], [1, True]]
        assert seen["optimizer"] == alone["wide stopped"][0]["optimizer"]


@pytest.mark.lab
def test_ranks_sleep_until_a_late_one_has_come(several):
    """Where each has a core too: they look for 100 us or so before they go to sleep."""
    for seen in several["waiting"]:
        if not seen["is_late"]:
            assert seen["wall_s"] > 0.5
            assert seen["cpu_s"] < 0.1


def test_a_bit_that_changes_after_it_was_written_ends_the_step_of_all_ranks(several):
    for seen in several["damaged"]:
        assert "the memory is damaged" in seen["said"]
        assert seen["is_unchanged"]
    # By shares one rank alone reads the flipped bit, and tells the others.
    assert all("the memory is damaged" in seen["said"] for seen in several["wide, damaged"])
    assert several["wide, damaged"][0]["is_unchanged"]
