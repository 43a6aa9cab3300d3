"""What the kernel must know to add among several nodes: the plan, and how the nodes' first ranks send by MPI.

R  rows of the ranks      N  nodes      B  blocks of rows
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

from mpitrain.comm.mpi.c_functions import CFunctions, failure_of, open_c_communicator
from mpitrain.comm.mpi.communicator import MpiCommunicator
from mpitrain.comm.ranks import Ranks
from mpitrain.train.compiled.structs import KernelNodeExchange, KernelNodeMessages, KernelSumPlan
from mpitrain.train.compiled.sum_plan import NodesPlan, SumPlan


class NodeExchange:
    """The kernel's `NodeExchange`, at `address`, and a communicator of the nodes' first ranks.

    Making one is collective; the plan must agree on all ranks.
    """

    def __init__(self, ranks: Ranks, communicator: MpiCommunicator, functions: CFunctions, plan: NodesPlan) -> None:
        is_first = ranks.local_rank == 0
        self._comm = open_c_communicator(communicator.mpi_comm, ranks.node_rank if is_first else None)
        num_messages = 2 * (ranks.num_nodes - 1)
        self._kept: list[ctypes.Array[ctypes.c_int64]] = []  # whose addresses the kernel knows
        self._description = KernelNodeExchange(
            messages=KernelNodeMessages(
                send=functions.isend,
                receive=functions.irecv,
                test_all=functions.testall,
                statuses=self._keep([0] * (-(-num_messages * functions.status_bytes // 8))),
                requests=self._keep([0] * num_messages),
                communicator=self._comm.handle,
                byte_type=functions.byte_type,
                handle_bytes=functions.handle_bytes,
                num_nodes=ranks.num_nodes,
                node=ranks.node_rank,
            ),
            within=self._describe(plan.within[ranks.node_rank]),
            across=self._describe(plan.across),
            first_block=self._keep(plan.first_block),
            is_first=is_first,
            doubles=plan.doubles,
        )
        self.address = ctypes.addressof(self._description)

    def _describe(self, plan: SumPlan) -> KernelSumPlan:
        return KernelSumPlan(
            additions=self._keep(number for pair in plan.additions for number in pair),
            results=self._keep(plan.results),
            num_rows=plan.num_rows,
            num_additions=len(plan.additions),
            num_results=len(plan.results),
        )

    def _keep(self, numbers: Iterable[int]) -> int:
        values = list(numbers)
        self._kept.append((ctypes.c_int64 * len(values))(*values))
        return ctypes.addressof(self._kept[-1])

    def failure(self) -> Exception:
        """Return the error of MPI at which the kernel has ended."""
        return failure_of(self._description.messages.error)

    def close(self) -> None:
        """Give the communicator back. Collective."""
        self._comm.close()
