"""Plans of sums over several nodes, against the tree over all rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpitrain.comm.virtual_ranks import VirtualRanks
from mpitrain.train.compiled import sum_plan
from mpitrain.train.compiled.sum_plan import plan_by_node, plan_on_node, tree_additions

# Of every node at least one row, wherever it is.
PLACEMENTS = st.integers(1, 6).flatmap(
    lambda num_nodes: st.lists(st.integers(0, num_nodes - 1), max_size=30).flatmap(
        lambda more: st.permutations([*range(num_nodes), *more])
    )
)


def plan_in_tree(node_of_row):
    return sum_plan.plan_in_tree(node_of_row, [range(row, row + 1) for row in range(len(node_of_row))])


def rows_of(count):
    """Rows whose sum depends on the order of the additions, and takes each row once."""
    return np.random.default_rng(count).normal(size=(count, 5)).astype(np.float32) * np.float32(1e3) ** np.arange(5)


def tree_sum(rows):
    rows = rows.copy()
    distance = 1
    while distance < len(rows):
        for row in range(0, len(rows) - distance, 2 * distance):
            rows[row] += rows[row + distance]
        distance *= 2
    return rows[0]


def follow(plan, rows):
    assert len(rows) == plan.num_rows
    rows = rows.copy()
    for to, which in plan.additions:
        rows[to] += rows[which]
    return rows[plan.results]


def follow_nodes(plan, node_of_row, rows):
    """The total, in the order that the nodes would take."""
    own = [follow(within, rows[np.array(node_of_row) == node]) for node, within in enumerate(plan.within)]
    assert [len(block) for block in own] == list(np.diff(plan.first_block))
    (total,) = follow(plan.across, np.concatenate(own))
    return total


@given(PLACEMENTS)
def test_any_placement_gives_the_bits_of_the_tree(node_of_row):
    rows = rows_of(len(node_of_row))
    plan = plan_in_tree(node_of_row)
    np.testing.assert_array_equal(follow_nodes(plan, node_of_row, rows), tree_sum(rows))
    assert plan.across.num_rows <= len(node_of_row)


@given(PLACEMENTS)
def test_by_node_adds_every_row_once_and_one_block_a_node(node_of_row):
    powers = 2.0 ** np.arange(len(node_of_row))[:, None]
    plan = plan_by_node(node_of_row)
    assert follow_nodes(plan, node_of_row, powers) == [2.0 ** len(node_of_row) - 1]
    num_nodes = max(node_of_row) + 1
    assert (plan.across.num_rows, plan.doubles) == (num_nodes, num_nodes in (1, 2, 4))


@pytest.mark.parametrize(
    ("node_of_row", "num_blocks", "doubles"),
    [
        ([0, 1], 2, True),
        ([0, 0, 1, 1], 2, True),
        ([0, 0, 1, 1, 2, 2, 3, 3], 4, True),
        ([0, 0, 0, 1], 3, False),  # (0,1) and 2, and 3
        ([0, 1, 0, 1], 4, False),
        ([0, 0, 1, 2], 3, False),
        ([0] * 12 + [1] * 4, 3, False),
        ([1, 1, 0, 0], 2, False),  # would add in the other order
        ([0, 1, 2], 3, False),
        ([0, 0, 0, 1, 1, 1, 2, 2], 5, False),  # 8 virtual ranks of 3 ranks: 0 1, 2, 3, 4 5, 6 7
    ],
)
def test_a_block_is_the_largest_subtree_of_a_node(node_of_row, num_blocks, doubles):
    plan = plan_in_tree(node_of_row)
    assert (plan.across.num_rows, plan.doubles) == (num_blocks, doubles)


def test_where_sums_double_memory_does_not_grow_with_the_nodes():
    for num_nodes in (2, 128, 1024):
        assert plan_in_tree([node for node in range(num_nodes) for _ in range(4)]).num_rows_exchanged == 2
    assert plan_in_tree([0, 0, 0, 1]).num_rows_exchanged == 3


def test_of_an_odd_number_the_last_row_waits():
    assert tree_additions(1) == []
    assert tree_additions(5) == [(0, 1), (2, 3), (0, 2), (0, 4)]


@given(st.integers(0, 7), st.integers(1, 24), st.integers(1, 4))
def test_the_subtrees_of_any_number_of_ranks_give_the_bits_of_the_tree(exponent, num_ranks, num_nodes):
    num_virtual_ranks = 1 << exponent
    blocks = VirtualRanks(num_virtual_ranks, num_ranks, 0).blocks
    leaves = rows_of(num_virtual_ranks)
    places = np.concatenate([leaves, np.full((max(0, num_ranks - num_virtual_ranks), 5), -0.0, np.float32)])
    subtrees = [block for own in blocks for block in own]
    rows = np.stack([tree_sum(places[block.start : block.stop]) for block in subtrees])
    np.testing.assert_array_equal(follow(plan_on_node(subtrees), rows)[0], tree_sum(leaves))
    node_of_row = [rank % num_nodes for rank, own in enumerate(blocks) for _ in own]
    node_of_row = [sorted(set(node_of_row)).index(node) for node in node_of_row]
    plan = sum_plan.plan_in_tree(node_of_row, subtrees)
    np.testing.assert_array_equal(follow_nodes(plan, node_of_row, rows), tree_sum(leaves))
