"""The C structures that the engine passes to the kernel, and the numbers that stand for choices."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

from mpitrain.errors import MpitrainError
from mpitrain.train.compiled.sum_plan import SumPlan


class KernelStep(ctypes.Structure):
    """What a training step needs, set up once; the fields are those of `Step` in dense_step.hpp, in their order."""

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
    """Of which numbers dropout draws; the fields are those of `Draws` in dense_step.hpp, in their order."""

    _fields_ = (
        ("epoch_key", ctypes.c_uint64), ("step_in_epoch", ctypes.c_int64), ("first_microbatch", ctypes.c_int64),
    )  # fmt: skip


class KernelSumTimes(ctypes.Structure):
    """What a rank's sums took, in ticks; the fields are those of `SumTimes` in node_sum.hpp, in their order."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("waited", "worked", "num_timed", "num_sums", "exchanged"))


class KernelNodeMessages(ctypes.Structure):
    """How first ranks of nodes send; the fields are those of `NodeMessages` in node_messages.hpp, in their order."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("send", "receive", "test_all", "statuses", "requests")),
        *((name, ctypes.c_int64) for name in (
            "communicator", "byte_type", "handle_bytes", "num_nodes", "node", "error",
        )),
    )  # fmt: skip


class KernelSumPlan(ctypes.Structure):
    """Which rows are added to which; the fields are those of `SumPlan` in node_sum.hpp, in their order."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("additions", "results")),
        *((name, ctypes.c_int64) for name in ("num_rows", "num_additions", "num_results")),
    )


class KernelNodeExchange(ctypes.Structure):
    """How several nodes add up; the fields are those of `NodeExchange` in nodes_sum.hpp, in their order."""

    _fields_ = (
        ("messages", KernelNodeMessages), ("within", KernelSumPlan), ("across", KernelSumPlan),
        ("first_block", ctypes.c_void_p), ("is_first", ctypes.c_int64), ("doubles", ctypes.c_int64),
    )  # fmt: skip


class KernelSharedSum(ctypes.Structure):
    """Where the ranks of one node add up; the fields are those of `SharedSum` in node_sum.hpp, in their order."""

    _fields_ = (
        ("meeting", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("num_ranks", "num_rows", "first_row", "num_own_rows", "shares_cores")),
        *((name, ctypes.c_void_p) for name in ("times", "exchange", "counts")),
        ("plan", KernelSumPlan),
    )


class KernelNumbers:
    """Whole numbers whose addresses the kernel knows, as long as this object lives."""

    def __init__(self) -> None:
        self._kept: list[ctypes.Array[ctypes.c_int64]] = []

    def keep(self, numbers: Iterable[int]) -> int:
        """Return the address of a copy of `numbers`."""
        values = list(numbers)
        self._kept.append((ctypes.c_int64 * len(values))(*values))
        return ctypes.addressof(self._kept[-1])

    def keep_plan(self, plan: SumPlan) -> KernelSumPlan:
        """Return `plan` as the kernel knows it."""
        return KernelSumPlan(
            additions=self.keep(number for pair in plan.additions for number in pair),
            results=self.keep(plan.results),
            num_rows=plan.num_rows,
            num_additions=len(plan.additions),
            num_results=len(plan.results),
        )


def check_sizes(kernel: ctypes.CDLL) -> None:
    """Raise MpitrainError where the kernel was compiled for other structures than these: it would read wrong memory."""
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
