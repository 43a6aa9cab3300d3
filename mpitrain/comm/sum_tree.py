"""The fixed tree in which the partial sums of a batch are added, and its subtrees that have a single owner.

L  leaves      S  the smallest power of two that is at least L

The tree is ((0,1),(2,3)),... over S leaves; leaves L to S - 1 do not exist, so that the last node of an odd level moves
to the next level unchanged.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

Additions = list[tuple[int, int]]


def tree_additions(num_leaves: int) -> Additions:
    """Return the additions of the tree, level by level, as pairs (target leaf, source leaf)."""
    distances = [1 << level for level in range(max(num_leaves - 1, 0).bit_length())]
    return [(leaf, leaf + d) for d in distances for leaf in range(0, num_leaves - d, 2 * d)]


def owned_subtrees(owners: Sequence[Hashable]) -> Iterator[range]:
    """Yield the leaves of each maximal subtree with one owner, in order; `owners` (L,) is the owner of each leaf."""
    num_leaves = len(owners)
    waiting = [(0, 1 << max(num_leaves - 1, 0).bit_length())]
    while waiting:
        first, size = waiting.pop()
        leaves = range(first, min(first + size, num_leaves))
        if len({owners[leaf] for leaf in leaves}) > 1:
            waiting += [(first + size // 2, size // 2), (first, size // 2)]
        elif leaves:
            yield leaves


def additions_between(subtrees: Sequence[range]) -> Additions:
    """Return the additions that remain when each of `subtrees` is reduced to one row: pairs (target row, source row).

    `subtrees` must contain all leaves, in order.
    """
    row_of = [row for row, leaves in enumerate(subtrees) for _ in leaves]
    pairs = ((row_of[target], row_of[source]) for target, source in tree_additions(len(row_of)))
    return [(target, source) for target, source in pairs if target != source]
