"""Who owns which virtual ranks, and what a user is told about the layout."""

import pytest

from mpitrain.comm.virtual_ranks import (
    VirtualRanks,
    idle_notice,
    microbatches_of,
    plan_virtual_ranks,
    rank_range,
    streams_of,
    uneven_notice,
)


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
    assert notices == [
        "8 virtual ranks on 6 ranks: the ranks compute 67% of the time and wait otherwise; use 4 or 8 ranks for 100%"
    ]


@pytest.mark.parametrize(("world_size", "raised"), [(9, 16), (16, 16), (17, 32), (100, 128)])
def test_more_ranks_than_virtual_ranks_raise_them_and_say_so(world_size, raised):
    plan, notices = plan_virtual_ranks(8, world_size, world_size - 1)
    assert plan.num_virtual_ranks == raised
    assert min(plan.counts) == 1
    assert f"raised from 8 to {raised} for {world_size} ranks" in notices[0]
    assert f"training.virtual_ranks={raised}" in notices[0]
    assert len(notices) == (1 if world_size == raised else 2)


@pytest.mark.parametrize(
    ("batch_size", "expected"),
    [(1, 1), (15, 1), (16, 2), (64, 8), (100, 8), (1000, 64), (1024, 128), (4096, 128)],
)
def test_a_batch_of_points_has_microbatches_of_at_least_8_rows(batch_size, expected):
    assert microbatches_of(batch_size, "points") == expected


@pytest.mark.parametrize(("batch_size", "expected"), [(1, 1), (5, 5), (8, 8), (128, 128), (129, 65), (1000, 125)])
def test_a_batch_of_fields_has_one_field_a_microbatch_up_to_128(batch_size, expected):
    assert microbatches_of(batch_size, "fields") == expected


@pytest.mark.parametrize("kind", ["points", "fields"])
def test_batch_norm_has_at_most_8_microbatches(kind):
    assert [microbatches_of(size, kind, 8) for size in (64, 1024, 4096)] == [8, 8, 8]


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (5, 5), (8, 8), (12, 6), (125, 5), (128, 8), (13, 1)])
def test_streams_divide_the_microbatches(count, expected):
    assert streams_of(count) == expected


@pytest.mark.parametrize("num_microbatches", [1, 2, 8])
def test_ranks_beyond_the_microbatches_are_idle_and_the_last(num_microbatches):
    layouts = [VirtualRanks(num_microbatches, 13, rank) for rank in range(13)]
    assert [layout.is_idle for layout in layouts] == [rank >= num_microbatches for rank in range(13)]
    assert [layout.owned for layout in layouts] == [range(rank, rank + 1) for rank in range(13)]


def test_microbatches_can_be_accumulated_in_parts_where_any_number_of_them_allows_it():
    assert [microbatches_of(64, "points", parts=parts) for parts in (1, 2, 8, 16, 64)] == [8, 8, 8, 4, 1]
    assert microbatches_of(1000, "points", parts=5) == 8  # of 125 rows, as before; 64 would have 16
    assert microbatches_of(64, "points", parts=3) == 8  # no number allows it
    assert [microbatches_of(16, "fields", parts=parts) for parts in (1, 2, 4)] == [16, 8, 4]


def test_a_line_says_how_large_a_batch_would_use_idle_ranks():
    assert idle_notice(VirtualRanks(8, 8, 0), 64, "points") == []
    (line,) = idle_notice(VirtualRanks(8, 24, 0), 64, "points")
    assert line == (
        "a batch of 64 is divided into 8 microbatches: 16 of 24 ranks are idle; a batch of 256 would use 24 ranks"
    )
    assert "into 1 microbatch: 2 of 3 ranks" in idle_notice(VirtualRanks(1, 3, 0), 2, "points")[0]
    assert "a batch of 24 would use 24" in idle_notice(VirtualRanks(8, 24, 0), 8, "fields")[0]
    assert (
        "are idle; this is the largest automatic number of microbatches"
        in idle_notice(VirtualRanks(8, 24, 0), 1000, "points", 8)[0]
    )
    assert "a batch of 1024 would use 128" in idle_notice(VirtualRanks(8, 500, 0), 64, "points")[0]


def test_a_line_names_better_numbers_of_ranks_where_many_wait():
    (line,) = uneven_notice(VirtualRanks(8, 6, 0))
    assert line == (
        "8 microbatches on 6 ranks: the ranks compute 67% of the time and wait otherwise; use 4 or 8 ranks for 100%"
    )
    assert uneven_notice(VirtualRanks(128, 3, 0)) == uneven_notice(VirtualRanks(2, 3, 0)) == []
    # A line where less than 95% is work: 128/135 is, 19/20 is not.
    assert len(uneven_notice(VirtualRanks(128, 9, 0))) == 1
    assert uneven_notice(VirtualRanks(19, 2, 0)) == []
