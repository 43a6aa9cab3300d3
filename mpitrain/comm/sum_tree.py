"""The one tree in which the partial sums of a batch are added, and which parts of it have a single owner.

L  leaves      S  the smallest power of two of at least L

The tree is ((0,1),(2,3)),... over S leaves; those from L on do not exist, so that the last one of an odd level waits
for the next level.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

Additions = list[tuple[int, int]]


def tree_additions(num_leaves: int) -> Additions:
    """Return the additions of the tree, level by level: (to which leaf, which)."""
    distances = [1 << level for level in range(max(num_leaves - 1, 0).bit_length())]
    return [(leaf, leaf + d) for d in distances for leaf in range(0, num_leaves - d, 2 * d)]


def owned_subtrees(owners: Sequence[Hashable]) -> Iterator[range]:
    """Yield the leaves of each largest subtree of one owner, in order; `owners` (L,) says whose each leaf is."""
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
    """Return the additions of the tree that are left when each of `subtrees` is one row: (to which row, which).

    `subtrees` hold all leaves, in order.
    """
    row_of = [row for row, leaves in enumerate(subtrees) for _ in leaves]
    pairs = ((row_of[to], row_of[which]) for to, which in tree_additions(len(row_of)))
    return [(to, which) for to, which in pairs if to != which]
