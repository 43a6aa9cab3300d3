"""The kernel's description of a sum over several nodes: the plan, and the MPI functions of the nodes' first ranks.

R  rows of the ranks      N  nodes      B  blocks of rows
"""

from __future__ import annotations

import ctypes

from mpitrain.comm import Ranks
from mpitrain.comm.mpi.c_functions import CFunctions, failure_of, open_c_communicator
from mpitrain.comm.mpi.communicator import MpiCommunicator
from mpitrain.train.compiled.structs import KernelNodeExchange, KernelNodeMessages, KernelNumbers
from mpitrain.train.compiled.sum_plan import NodesPlan


class NodeExchange:
    """The kernel's `NodeExchange`, at `address`, and a communicator of the first ranks of all nodes.

    Creating one is collective; the plan must be the same on all ranks.
    """

    def __init__(self, ranks: Ranks, communicator: MpiCommunicator, functions: CFunctions, plan: NodesPlan) -> None:
        is_first = ranks.local_rank == 0
        self._comm = open_c_communicator(communicator.mpi_comm, ranks.node_rank if is_first else None)
        num_messages = 2 * (ranks.num_nodes - 1)
        self._numbers = KernelNumbers()
        keep = self._numbers.keep
        self._description = KernelNodeExchange(
            messages=KernelNodeMessages(
                send=functions.isend,
                receive=functions.irecv,
                test_all=functions.testall,
                statuses=keep([0] * (-(-num_messages * functions.status_bytes // 8))),
                requests=keep([0] * num_messages),
                communicator=self._comm.handle,
                byte_type=functions.byte_type,
                handle_bytes=functions.handle_bytes,
                num_nodes=ranks.num_nodes,
                node=ranks.node_rank,
            ),
            within=self._numbers.keep_plan(plan.within[ranks.node_rank]),
            across=self._numbers.keep_plan(plan.across),
            first_block=keep(plan.first_block),
            is_first=is_first,
            doubles=plan.doubles,
        )
        self.address = ctypes.addressof(self._description)

    def failure(self) -> Exception:
        """Return the MPI error with which the kernel ended."""
        return failure_of(self._description.messages.error)

    def close(self) -> None:
        """Free the communicator. Collective."""
        self._comm.close()
