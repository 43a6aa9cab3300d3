"""More ranks than cores: a few of them take the steps for all, with the bits and the words of any other layout."""

import json
import os

import pytest
from conftest import TESTS, launch

from mpitrain.train.compiled.crew import choose_members

NUM_CORES = min(2, len(os.sched_getaffinity(0)))
WHOLE = frozenset({0, 1, 2, 3})


@pytest.mark.parametrize(
    ("affinities", "most", "members"),
    [
        ([WHOLE] * 8, 4, [0, 1, 2, 3]),
        ([WHOLE] * 8, 2, [0, 1]),
        ([WHOLE] * 8, 3, [0, 1]),  # a power of two
        ([frozenset({core}) for core in (0, 0, 0, 1, 1, 1)], 2, [0, 3]),
        ([frozenset({7})] * 5, 4, [0]),
        ([WHOLE, frozenset({0}), frozenset({0, 1}), frozenset({1})], 4, [0, 1]),  # three cores in all, 3 of 4 ranks
        ([frozenset({0, 1}), frozenset({0}), frozenset({1}), frozenset({2, 0}), frozenset({3})], 8, [0, 1, 3, 4]),
    ],
)
def test_members_have_a_core_each(affinities, most, members):
    assert choose_members(affinities, most) == members


def facts_of(tmp_path_factory, num_ranks):
    folder = tmp_path_factory.mktemp("crew")
    done = launch([str(TESTS / "train" / "crew_program.py"), str(folder)], num_ranks)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "facts.json").read_text())


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return facts_of(tmp_path_factory, 1)


@pytest.fixture(scope="module", params=[3, 4, 8])
def crowded(request, tmp_path_factory):
    return facts_of(tmp_path_factory, request.param)


@pytest.mark.mpi(ranks=8)
def test_a_crew_of_as_many_ranks_as_cores_takes_the_steps(crowded):
    for way in ("fixed", "any", "stopped"):
        assert {seen["crew"] for seen in crowded[way]} == {NUM_CORES}
        assert sum(seen["is_member"] for seen in crowded[way]) == NUM_CORES


@pytest.mark.mpi(ranks=8)
@pytest.mark.parametrize("way", ["fixed", "fixed, one by one", "too many samples", "room for sums", "no room"])
def test_every_rank_has_the_bits_of_one_rank_alone(alone, crowded, way):
    (expected,) = alone["fixed"]
    for seen in crowded[way]:
        for what in ("weights", "optimizer", "losses", "ends", "sums"):
            assert seen[what] == expected[what]
    if not way.startswith("fixed"):
        assert {seen["crew"] for seen in crowded[way]} == {None}


@pytest.mark.mpi(ranks=8)
def test_an_epoch_is_one_call_and_its_steps_are_those_of_single_calls(alone):
    (many,), (one_by_one,) = alone["fixed"], alone["fixed, one by one"]
    assert (many["calls"], one_by_one["calls"]) == (3, len(one_by_one["losses"]))
    assert (many["weights"], many["losses"]) == (one_by_one["weights"], one_by_one["losses"])


@pytest.mark.mpi(ranks=8)
def test_joined_slices_agree_to_rounding(alone, crowded):
    (expected,) = alone["fixed"]
    assert len({json.dumps([seen["weights"], seen["losses"], seen["ends"]]) for seen in crowded["any"]}) == 1
    assert crowded["any"][0]["losses"] == pytest.approx(expected["losses"], rel=1e-4)
    assert crowded["any"][0]["ends"][-1] == pytest.approx(expected["ends"][-1], rel=1e-4)


@pytest.mark.mpi(ranks=8)
def test_a_stop_asked_outside_of_the_crew_is_heard_after_one_step(alone, crowded):
    for seen in (*alone["stopped"], *crowded["stopped"]):
        assert seen["calls"] == [[3, False], [1, True]]
        assert seen["weights"] == alone["stopped"][0]["weights"]


@pytest.mark.mpi(ranks=8)
def test_a_loss_that_is_no_number_ends_the_call_and_names_the_rank(crowded):
    last = len(crowded["diverged"]) - 1
    for seen in crowded["diverged"]:
        assert seen["fixed"][0] == seen["any"][0] == 1
        assert seen["fixed"][1].startswith(f"rank {last} on ")
        # A member's slices are one: all whose samples were among them are named.
        assert f"rank {last} on " in seen["any"][1]
