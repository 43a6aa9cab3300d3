"""The plan of a sum over several nodes: first the rows within each node, then the nodes' results.

R  rows in the order of the ranks      N  nodes      B  blocks: rows of one node that are added there
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mpitrain.comm.sum_tree import Additions, additions_between, owned_subtrees, tree_additions


@dataclass(frozen=True)
class SumPlan:
    """`additions` of rows: (to which, which), in this order; then the rows `results` hold what is asked for."""

    num_rows: int
    additions: Additions
    results: list[int]


@dataclass(frozen=True)
class NodesPlan:
    """How R rows on N nodes are added.

    `within[node]` makes the blocks of a node from its rows, in their order; `across` makes the total from all blocks,
    which follow their nodes: those of a node begin at `first_block[node]`, of N + 1. `doubles` is true where each node
    has one block, and they are added in the tree over 2^m nodes: then sums can double in m rounds between pairs.
    """

    within: list[SumPlan]
    across: SumPlan
    first_block: list[int]
    doubles: bool

    @property
    def num_rows_exchanged(self) -> int:
        """How many rows the exchange needs on each node: all blocks, or the sum and what comes in, whatever N is."""
        return 2 if self.doubles else self.across.num_rows


def plan_on_node(subtrees: Sequence[range]) -> SumPlan:
    """Return the plan that makes the total of the tree from rows on one node, each the sum of a subtree's leaves."""
    return SumPlan(len(subtrees), additions_between(subtrees), [0])


def plan_in_tree(node_of_row: Sequence[int], rows: Sequence[range]) -> NodesPlan:
    """Return the plan whose total is that of the tree over all leaves, whichever node, counted from 0, has each row.

    Each row is the sum of a subtree, whose leaves it names. A block is a largest subtree of which one node has all
    rows.
    """
    node_of_leaf = [node for node, leaves in zip(node_of_row, rows, strict=True) for _ in leaves]
    blocks = [
        [row for row, leaves in enumerate(rows) if leaves.start in subtree] for subtree in owned_subtrees(node_of_leaf)
    ]
    return _plan(node_of_row, blocks, additions_between(rows))


def plan_by_node(node_of_row: Sequence[int]) -> NodesPlan:
    """Return the plan that adds all rows of a node before those of others: one block a node, in another order."""
    nodes = range(max(node_of_row) + 1)
    blocks = [[row for row, owner in enumerate(node_of_row) if owner == node] for node in nodes]
    inside = [(rows[to], rows[which]) for rows in blocks for to, which in tree_additions(len(rows))]
    across = [(blocks[to][0], blocks[which][0]) for to, which in tree_additions(len(blocks))]
    return _plan(node_of_row, blocks, [*inside, *across])


def _plan(node_of_row: Sequence[int], blocks: list[list[int]], additions: Additions) -> NodesPlan:
    num_nodes = max(node_of_row) + 1
    blocks = sorted(blocks, key=lambda rows: (node_of_row[rows[0]], rows[0]))
    block_of = {row: number for number, rows in enumerate(blocks) for row in rows}
    within = [_plan_within(node_of_row, node, blocks, block_of, additions) for node in range(num_nodes)]
    across = [(block_of[to], block_of[which]) for to, which in additions if block_of[to] != block_of[which]]
    total = set(range(len(blocks))) - {which for _, which in across}  # the one that is added to no other
    counts = [len(plan.results) for plan in within]
    doubles = len(blocks) == num_nodes and num_nodes.bit_count() == 1 and across == tree_additions(num_nodes)
    return NodesPlan(
        within, SumPlan(len(blocks), across, list(total)),
        [sum(counts[:node]) for node in range(num_nodes + 1)], doubles,
    )  # fmt: skip


def _plan_within(
    node_of_row: Sequence[int], node: int, blocks: list[list[int]], block_of: dict[int, int], additions: Additions
) -> SumPlan:
    own = [row for row, owner in enumerate(node_of_row) if owner == node]
    place = {row: number for number, row in enumerate(own)}
    inside = [
        (place[to], place[which]) for to, which in additions if to in place and block_of[to] == block_of.get(which)
    ]
    return SumPlan(len(own), inside, [place[rows[0]] for rows in blocks if node_of_row[rows[0]] == node])
