"""The fixed tree, on ranks played by threads; tests of launched ranks are in test_comm_collectives.py."""

import math

import pytest
import torch
from order_sensitive_rows import order_sensitive_rows, tree_sum
from played_ranks import on_played_ranks

from mpitrain.comm.reduction import FixedTreeReducer, LibraryReducer, combine_in_tree
from mpitrain.comm.virtual_ranks import VirtualRanks

pytestmark = pytest.mark.fast

RANK_COUNTS = [1, 2, 3, 4, 5, 6, 7, 8]


def test_the_expectation_depends_on_the_order():
    rows = order_sensitive_rows()
    in_a_row = rows[0].copy()
    for row in rows[1:]:
        in_a_row += row
    halves_last = (rows[:4] + rows[4:])[:2] + (rows[:4] + rows[4:])[2:]
    for other in (in_a_row, halves_last[0] + halves_last[1], rows[::-1].sum(axis=0)):
        assert not (other == tree_sum(rows)).all()


def test_neighbours_are_added_first():
    rows = order_sensitive_rows()
    assert torch.equal(combine_in_tree(torch.from_numpy(rows)), torch.from_numpy(tree_sum(rows)))


@pytest.mark.parametrize(("num_rows", "joined"), [(1, 1), (2, 12), (4, 1234), (8, 12345678)])
def test_lower_and_upper_keep_their_sides(num_rows, joined):
    # A combination that does not commute: it writes the leaves' digits side by side.
    leaves = torch.arange(1.0, num_rows + 1, dtype=torch.float64)
    rows = torch.stack([leaves, torch.ones_like(leaves)], dim=1)
    assert combine_in_tree(rows, _write_side_by_side).tolist() == [joined, num_rows]


def _write_side_by_side(lower, upper):
    return torch.stack([lower[:, 0] * 10 ** upper[:, 1] + upper[:, 0], lower[:, 1] + upper[:, 1]], dim=1)


def on_each_rank(num_ranks, rows, reduce):
    """What `reduce(communicator, layout, own rows)` returns on each of `num_ranks` played ranks."""

    def body(communicator):
        layout = VirtualRanks(len(rows), num_ranks, communicator.rank)
        return reduce(communicator, layout, rows[layout.owned.start : layout.owned.stop])

    return on_played_ranks(num_ranks, body)


@pytest.mark.parametrize("num_ranks", RANK_COUNTS)
def test_ranks_add_the_same_tree_whatever_the_librarys_order(num_ranks):
    rows = torch.from_numpy(order_sensitive_rows())
    expected = torch.from_numpy(tree_sum(order_sensitive_rows()))
    for total in on_each_rank(num_ranks, rows, lambda comm, layout, own: FixedTreeReducer(comm, layout).reduce(own)):
        assert torch.equal(total, expected)


@pytest.mark.parametrize("num_ranks", RANK_COUNTS)
def test_ranks_keep_lower_and_upper_apart(num_ranks):
    leaves = torch.arange(1.0, 9, dtype=torch.float64)
    rows = torch.stack([leaves, torch.ones_like(leaves)], dim=1)
    joined = on_each_rank(
        num_ranks, rows, lambda comm, layout, own: FixedTreeReducer(comm, layout).reduce(own, _write_side_by_side)
    )
    assert [total.tolist() for total in joined] == [[12345678, 8]] * num_ranks


@pytest.mark.parametrize("num_ranks", RANK_COUNTS)
def test_the_library_adds_every_row_once_to_rounding(num_ranks):
    rows = order_sensitive_rows()
    exact = torch.tensor([math.fsum(column) for column in rows.T.tolist()], dtype=torch.float64)
    bound = 1e-6 * torch.from_numpy(abs(rows).sum(axis=0)).double()
    for total in on_each_rank(num_ranks, torch.from_numpy(rows), lambda comm, _, own: LibraryReducer(comm).reduce(own)):
        assert ((total - exact).abs() <= bound).all()
