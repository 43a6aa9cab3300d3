"""One flipped bit in the memory in which a node's ranks meet: `python shared_memory_flips.py PLACE BIT ARGUMENTS...`.

Run by mpirun on several ranks: the public command, in which rank 0 flips a bit before a step, once the other ranks wait
for it in that memory. PLACE names the word: arrived, round, asleep, or row: a number of the last rank's row, which has
arrived and which all are about to add; none flips nothing.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpitrain.train.compiled.node_sum import NodeSum

FLIP_AT = 5  # of an epoch
# Of `Meeting` in shared_sum.hpp: each on a cache line of its own, then two buffers of rows.
OFFSET_OF = {"arrived": 0, "round": 64, "asleep": 128}
PLACES = (*OFFSET_OF, "row")
_ROWS_AT, _SIZE_WITHOUT_ROWS = 192, 256
_OTHERS_ARRIVE_WITHIN_S = 1.0


def offset_of(place: str, node_sum: NodeSum) -> int:
    """Return where the word is in the memory."""
    if place in OFFSET_OF:
        return OFFSET_OF[place]
    memory, num_rows = node_sum._memory.array, node_sum._description.num_rows
    buffer = int(memory[OFFSET_OF["round"] :][:4].view("u4")[0]) % 2
    row_bytes = (len(memory) - _SIZE_WITHOUT_ROWS) // (2 * num_rows)
    return _ROWS_AT + (buffer * num_rows + num_rows - 1) * row_bytes + 4


def main(place: str, bit: int, words: list[str]) -> int:
    """Run the command with the flip; return its exit code."""
    from mpitrain.cli.main import main as command
    from mpitrain.train.compiled.engine import CompiledEngine

    real, todo, ranks = CompiledEngine.take_steps, {place} - {"none"}, set[int]()

    def take_steps(engine: CompiledEngine, first_step: int, num_steps: int, *arguments: object) -> object:
        ranks.add(engine.ranks.rank)
        if first_step == FLIP_AT and todo and engine.ranks.rank == 0:
            time.sleep(_OTHERS_ARRIVE_WITHIN_S)
            assert engine._node_sum is not None, "the ranks share no memory"
            engine._node_sum._memory.array[offset_of(todo.pop(), engine._node_sum) + bit // 8] ^= 1 << (bit % 8)
        # To the step of the flip in one call, and on to the end of the epoch in another, on all ranks alike.
        at_once = FLIP_AT - first_step if first_step < FLIP_AT else num_steps
        return real(engine, first_step, min(num_steps, at_once), *arguments)

    CompiledEngine.take_steps = take_steps
    code = command(words)
    assert not (todo and 0 in ranks), f"nothing is flipped: no epoch has a step {FLIP_AT}"
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
