"""Who owns which virtual ranks, and what a user is told about the layout."""

import pytest

from mpitrain.comm.virtual_ranks import VirtualRanks, plan_virtual_ranks, rank_range


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 7, 8, 13])
@pytest.mark.parametrize("num_items", [0, 1, 5, 8, 64, 1000])
def test_ranks_share_every_item_once_in_order_and_evenly(num_items, world_size):
    runs = [rank_range(num_items, world_size, rank) for rank in range(world_size)]
    assert [item for run in runs for item in run] == list(range(num_items))
    assert {len(run) for run in runs} <= {num_items // world_size, -(-num_items // world_size)}


def test_shares_of_eight_on_three_ranks_are_the_closed_form():
    assert [rank_range(8, 3, rank) for rank in range(3)] == [range(2), range(2, 5), range(5, 8)]


@pytest.mark.parametrize(
    ("num_virtual_ranks", "world_size", "is_even", "efficiency"),
    [(8, 1, True, 1.0), (8, 2, True, 1.0), (8, 3, False, 8 / 9), (8, 4, True, 1.0), (8, 5, False, 0.8),
     (8, 6, False, 2 / 3), (8, 7, False, 4 / 7), (8, 8, True, 1.0), (64, 48, False, 2 / 3), (1, 1, True, 1.0)],
)  # fmt: skip
def test_layout(num_virtual_ranks, world_size, is_even, efficiency):
    layouts = [VirtualRanks(num_virtual_ranks, world_size, rank) for rank in range(world_size)]
    assert [len(layout.owned) for layout in layouts] == layouts[0].counts
    assert min(layouts[0].counts) >= 1
    assert {layout.is_even for layout in layouts} == {is_even}
    assert layouts[0].efficiency == pytest.approx(efficiency, rel=1e-15)


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_an_even_layout_needs_no_word(world_size):
    assert plan_virtual_ranks(8, world_size, 0) == (VirtualRanks(8, world_size, 0), [])


def test_an_uneven_layout_names_its_efficiency_and_better_counts():
    plan, notices = plan_virtual_ranks(8, 6, 2)
    assert plan == VirtualRanks(8, 6, 2)
    assert notices == ["8 virtual ranks on 6 ranks: 67% of the time is work; 4 or 8 ranks would use all of it"]


@pytest.mark.parametrize(("world_size", "raised"), [(9, 16), (16, 16), (17, 32), (100, 128)])
def test_more_ranks_than_virtual_ranks_raise_them_and_say_so(world_size, raised):
    plan, notices = plan_virtual_ranks(8, world_size, world_size - 1)
    assert plan.num_virtual_ranks == raised
    assert min(plan.counts) == 1
    assert f"raised from 8 to {raised} for {world_size} ranks" in notices[0]
    assert f"training.virtual_ranks={raised}" in notices[0]
    assert len(notices) == (1 if world_size == raised else 2)
