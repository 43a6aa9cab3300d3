"""On each rank: take samples that one rank of the node has read, and see what another rank writes into them."""

import sys
from pathlib import Path

import numpy as np

from mpitrain.comm.session import open_session
from mpitrain.comm.world import World, run_on_all_ranks
from mpitrain.config import load_run_config
from mpitrain.data.dataset.node_samples import read_once_a_node
from mpitrain.data.samples import Samples, read_samples


def body(world: World) -> int:
    num_reads = 0

    def read() -> Samples:
        nonlocal num_reads
        num_reads += 1
        return read_samples(Path(sys.argv[1]), "north", True)

    with open_session(world, load_run_config(None, []).config) as session:
        with read_once_a_node(read, session) as samples:
            alone = read_samples(Path(sys.argv[1]), "north", True)
            for name, column in alone.columns().items():
                assert np.array_equal(samples.columns()[name], column)
            session.barrier()
            if session.ranks.rank == 2:
                samples.inputs[3, 4] = 42
            session.barrier()
            print(f"rank{session.ranks.rank}:{samples.inputs[3, 4]}", flush=True)
        total = sum(session.gather_object(num_reads))
        world.say(f"read:{total}")
    return 0


if __name__ == "__main__":
    raise SystemExit(run_on_all_ranks(body))
