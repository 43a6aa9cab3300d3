"""The C structures that the engine passes to the kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

from mpitrain.errors import MpitrainError
from mpitrain.train.compiled.sum_plan import SumPlan


class KernelStep(ctypes.Structure):
    """The data of a training step, set up once; the same fields in the same order as `Step` in dense_step.hpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (
            "work", "parameters", "statistics", "addresses", "partials", "epoch_sums", "loss_and_stop", "first_moment",
            "second_moment", "step_count", "average", "steps_done", "digest", "draws", "running", "block_microbatches",
        )),
        *((name, ctypes.c_int64) for name in ("microbatch_stride", "num_blocks", "microbatch_rows", "optimizer")),
        *((name, ctypes.c_double) for name in (
            "clip_norm", "beta1", "beta2", "epsilon", "weight_decay", "momentum", "average_decay",
        )),
    )  # fmt: skip


class KernelDraws(ctypes.Structure):
    """The keys of dropout's random numbers; the same fields in the same order as `Draws` in dense_step.hpp."""

    _fields_ = (
        ("epoch_key", ctypes.c_uint64), ("step_in_epoch", ctypes.c_int64), ("first_microbatch", ctypes.c_int64),
    )  # fmt: skip


class KernelSumTimes(ctypes.Structure):
    """The times of a rank's sums, in ticks; the same fields in the same order as `SumTimes` in node_sum.hpp."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("waited", "worked", "num_timed", "num_sums", "exchanged"))


class KernelNodeMessages(ctypes.Structure):
    """MPI of the nodes' first ranks; the same fields in the same order as `NodeMessages` in node_messages.hpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("send", "receive", "test_all", "statuses", "requests")),
        *((name, ctypes.c_int64) for name in (
            "communicator", "byte_type", "handle_bytes", "num_nodes", "node", "error",
        )),
    )  # fmt: skip


class KernelSumPlan(ctypes.Structure):
    """The order of additions; the same fields in the same order as `SumPlan` in node_sum.hpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("additions", "results")),
        *((name, ctypes.c_int64) for name in ("num_rows", "num_additions", "num_results")),
    )


class KernelNodeExchange(ctypes.Structure):
    """A sum over several nodes; the same fields in the same order as `NodeExchange` in nodes_sum.hpp."""

    _fields_ = (
        ("messages", KernelNodeMessages), ("within", KernelSumPlan), ("across", KernelSumPlan),
        ("first_block", ctypes.c_void_p), ("is_first", ctypes.c_int64), ("doubles", ctypes.c_int64),
    )  # fmt: skip


class KernelSharedSum(ctypes.Structure):
    """A sum in one node's shared memory; the same fields in the same order as `SharedSum` in node_sum.hpp."""

    _fields_ = (
        ("meeting", ctypes.c_void_p),
        *(
            (name, ctypes.c_int64)
            for name in ("num_ranks", "num_rows", "rank", "first_row", "num_own_rows", "shares_cores")
        ),
        *((name, ctypes.c_void_p) for name in ("times", "exchange", "counts")),
        ("plan", KernelSumPlan),
    )


class KernelNumbers:
    """Owner of integers at addresses that the kernel uses; the addresses are valid as long as this object lives."""

    def __init__(self) -> None:
        self._kept: list[ctypes.Array[ctypes.c_int64]] = []

    def keep(self, numbers: Iterable[int]) -> int:
        """Return the address of a copy of `numbers`."""
        values = list(numbers)
        self._kept.append((ctypes.c_int64 * len(values))(*values))
        return ctypes.addressof(self._kept[-1])

    def keep_plan(self, plan: SumPlan) -> KernelSumPlan:
        """Return `plan` as the kernel's structure."""
        return KernelSumPlan(
            additions=self.keep(number for pair in plan.additions for number in pair),
            results=self.keep(plan.results),
            num_rows=plan.num_rows,
            num_additions=len(plan.additions),
            num_results=len(plan.results),
        )


def check_sizes(kernel: ctypes.CDLL) -> None:
    """Raise MpitrainError if structures have other sizes in the kernel than here: it would read wrong memory."""
    named = (
        (KernelStep, "Step"), (KernelDraws, "Draws"), (KernelSharedSum, "SharedSum"), (KernelSumTimes, "SumTimes"),
        (KernelNodeExchange, "NodeExchange"),
    )  # fmt: skip
    for structure, name in named:
        size = getattr(kernel, f"sizeof_{name}")()
        if size != ctypes.sizeof(structure):
            raise MpitrainError(
                f"{kernel._name}: {name} has {size} bytes there and {ctypes.sizeof(structure)} in structs.py, so the "
                "step would read wrong memory; give both the same fields"
            )
