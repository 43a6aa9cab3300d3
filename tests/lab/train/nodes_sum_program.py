"""Run by test_train_nodes_sum.py under mpirun or srun: `python nodes_sum_program.py RESULTS [NODES]`.

NODES, such as 0,0,0,1, says on which node each rank believes to be; without it, MPI does. Trains a few epochs with the
compiled engine, in several ways, and writes what was seen on each rank to RESULTS/facts.json: {way: [rank 0's, ...]}.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[2] / "train"))

from node_sum_program import RATE, Run, no_shared_memory, noting_in, stopped, waiting

from mpitrain.comm.mpi.communicator import MpiCommunicator
from mpitrain.comm.start import run_on_all_ranks
from mpitrain.train.compiled import node_sum

LAYERS = ("model.dropout=0.2", "model.batch_norm=true")


@contextmanager
def believed_nodes(node_of_rank):
    """As if MPI had found these nodes; messages go the same ways."""

    def split(communicator):
        from mpi4py import MPI

        return communicator.mpi_comm.Split(node_of_rank[MPI.COMM_WORLD.rank], communicator.rank)

    with mock.patch.object(MpiCommunicator, "split_by_node", split):
        yield


def epochs(ranks, *settings, **options):
    run = Run(ranks, *settings)
    own = run.engine._node_sum
    exchange = own._exchange if own is not None else None
    seen = run.epochs(**options)
    return {
        **seen,
        "nodes": ranks.num_nodes,
        "exchanges": exchange is not None,
        "doubles": bool(exchange and exchange._description.doubles),
        "handle_bytes": exchange and exchange._description.messages.handle_bytes,
        "messages_s": own and own.seconds()[2],
    }


def broken(ranks):
    """MPI refuses the handle of its datatype: what does each rank raise?"""
    run = Run(ranks)
    run.engine.start_epoch(0)
    messages = run.engine._node_sum._exchange._description.messages
    messages.byte_type = _no_datatype()
    try:
        run.engine.take_steps(0, 3, RATE, False)
    except RuntimeError as error:
        return {"kind": type(error).__name__, "text": str(error)}
    return {}


def _no_datatype():
    from mpi4py import MPI

    return MPI._handleof(MPI.DATATYPE_NULL)


def body(ranks):
    facts = {}
    note = noting_in(facts, ranks)
    last = ranks.world_size - 1
    note("fixed", epochs)
    note("fixed, one by one", lambda ranks: epochs(ranks, most=1))
    note("any", lambda ranks: epochs(ranks, "training.reduction=any"), "any")
    note("layers", lambda ranks: epochs(ranks, *LAYERS))
    note("profiled", lambda ranks: epochs(ranks, "training.profile_training=true", most=1))
    with no_shared_memory():
        note("no room", epochs)
    with mock.patch.object(node_sum, "find_c_functions", return_value=None):
        note("no functions", epochs)
    note("stopped", lambda ranks: stopped(ranks, last))
    note("waiting", lambda ranks: waiting(ranks, last))
    if ranks.num_nodes == ranks.world_size > 1:  # else the others of a node would wait for their first one for ever
        note("broken", broken)
    if ranks.is_root:
        (Path(sys.argv[1]) / "facts.json").write_text(json.dumps(facts))
    return 0


if __name__ == "__main__":
    nodes = [int(word) for word in sys.argv[2].split(",")] if sys.argv[2:] else []
    with believed_nodes(nodes) if nodes else nullcontext():
        raise SystemExit(run_on_all_ranks(body))
