"""The tree over any number of leaves, and what is left of it where each rank has added its own part."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from played_ranks import on_played_ranks

from mpitrain.comm.reduction import FixedTreeReducer, combine_in_tree
from mpitrain.comm.sum_tree import additions_between, owned_subtrees, tree_additions
from mpitrain.comm.virtual_ranks import VirtualRanks


def rows_of(count):
    """Rows whose sum depends on the order of the additions; a column of -0 tells whether a 0 was added."""
    rows = np.random.default_rng(count).normal(size=(count, 5)).astype(np.float32) * np.float32(1e3) ** np.arange(5)
    rows[:, 2] = -0.0
    return rows.astype(np.float32)


def tree_sum(rows):
    rows = rows.copy()
    for to, which in tree_additions(len(rows)):
        rows[to] += rows[which]
    return rows[0]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_subtrees_of_one_owner_leave_the_sum_of_the_tree(owners):
    rows, subtrees = rows_of(len(owners)), list(owned_subtrees(owners))
    assert [leaf for leaves in subtrees for leaf in leaves] == list(range(len(owners)))
    assert all(len({owners[leaf] for leaf in leaves}) == 1 for leaves in subtrees)
    sums = np.stack([combine_in_tree(rows[leaves.start : leaves.stop]) for leaves in subtrees])
    for to, which in additions_between(subtrees):
        sums[to] += sums[which]
    assert sums[0].tobytes() == tree_sum(rows).tobytes()


@pytest.mark.parametrize("num_parts", [1, 2, 5, 8, 12, 32])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5, 8, 13])
def test_any_number_of_ranks_gives_the_bits_of_the_tree(num_parts, num_ranks):
    rows = rows_of(num_parts)

    def body(communicator):
        layout = VirtualRanks(num_parts, num_ranks, communicator.rank)
        own = rows[layout.owned.start : layout.owned.stop]
        # An idle rank computes a microbatch of padding, whose gradient is 0.
        own = np.zeros((1, 5), np.float32) if layout.is_idle else own.copy()
        return FixedTreeReducer(communicator, layout).reduce(own)

    for total in on_played_ranks(num_ranks, body):
        assert total.tobytes() == tree_sum(rows).tobytes()


def test_the_wish_of_an_idle_rank_to_stop_is_counted():
    def body(communicator):
        layout = VirtualRanks(2, 3, communicator.rank)
        return FixedTreeReducer(communicator, layout).reduce(np.full((1, 1), float(layout.is_idle)))

    assert [total.tolist() for total in on_played_ranks(3, body)] == [[1.0]] * 3


@pytest.mark.parametrize(("num_ranks", "most_rows"), [(3, 13), (5, 24), (24, 60)])
def test_an_uneven_layout_sends_few_rows(num_ranks, most_rows):
    blocks = VirtualRanks(128, num_ranks, 0).blocks
    assert sum(map(len, blocks)) <= most_rows
