"""The plan of a sum over several nodes: first the rows within each node, then the results of the nodes.

R  rows in the order of the ranks      N  nodes      B  blocks: groups of rows that are added on one node
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mpitrain.comm.sum_tree import Additions, additions_between, owned_subtrees, tree_additions


@dataclass(frozen=True)
class SumPlan:
    """`additions` of rows as (target, source), in this order; afterwards the rows `results` hold the results."""

    num_rows: int
    additions: Additions
    results: list[int]


@dataclass(frozen=True)
class NodesPlan:
    """The plan by which R rows on N nodes are added.

    `within[node]` makes the blocks of a node from its rows; `across` makes the total from all blocks, which are in the
    order of the nodes: those of a node begin at `first_block[node]` (N + 1 entries). `doubles` is true if each node has
    one block and there are 2^m nodes, whose blocks are added in the tree: the sum then takes m rounds between pairs of
    nodes (recursive doubling).
    """

    within: list[SumPlan]
    across: SumPlan
    first_block: list[int]
    doubles: bool

    @property
    def num_rows_exchanged(self) -> int:
        """The number of rows that the exchange needs on each node: one per block, or with `doubles` two."""
        return 2 if self.doubles else self.across.num_rows


def plan_on_node(subtrees: Sequence[range]) -> SumPlan:
    """Return the plan that adds rows on one node, each the sum of a subtree's leaves, to the total of the tree."""
    return SumPlan(len(subtrees), additions_between(subtrees), [0])


def plan_in_tree(node_of_row: Sequence[int], rows: Sequence[range]) -> NodesPlan:
    """Return the plan with the total of the tree over all leaves, for any distribution of the rows over the nodes.

    Row i is on node `node_of_row[i]`, from 0, and is the sum of the subtree with the leaves `rows[i]`. A block is a
    largest subtree with all of its rows on one node.
    """
    node_of_leaf = [node for node, leaves in zip(node_of_row, rows, strict=True) for _ in leaves]
    blocks = [
        [row for row, leaves in enumerate(rows) if leaves.start in subtree] for subtree in owned_subtrees(node_of_leaf)
    ]
    return _plan(node_of_row, blocks, additions_between(rows))


def plan_by_node(node_of_row: Sequence[int]) -> NodesPlan:
    """Return the plan that adds all rows of a node first: one block per node; the order is not that of the tree."""
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
    total = set(range(len(blocks))) - {which for _, which in across}  # the block that is not added to another one
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
