"""Where ranks outnumber their node's cores, as many of them as there are cores take the steps for all: the crew.

The others lend it their samples, sleep, and take over its result: none of them is switched in during a step.

P  ranks      V  virtual ranks      M  members of the crew      b  rows a slice      n  parameters      N  samples lent
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from mpitrain.cluster.cores import detect_affinity
from mpitrain.comm.ranks import Ranks
from mpitrain.comm.watch.notes import waiting_in
from mpitrain.data.dataset.batches import VirtualRankBatches
from mpitrain.errors import LaunchError
from mpitrain.train.compiled.addresses import LaidOutRows, OrderTable
from mpitrain.train.compiled.node_sum import SPINS, can_share
from mpitrain.train.engines.standard import EngineInputs

if TYPE_CHECKING:
    from mpitrain.comm.communicator import NodeSharedTensor

# Samples are held twice, by their rank and for the crew: not worth it where they are what fills the node.
LARGEST_LENT_BYTES = 2**30
_ALIGNMENT = 64
# What a rank outside takes over from the crew.
_PUBLISHED = ("parameters", "first_moment", "second_moment", "step_count", "losses", "loss_and_stop", "num_taken")
Shapes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


class KernelPublished(ctypes.Structure):
    """Something to hand over; the fields are those of `Published` in crew.cpp, in their order."""

    _fields_ = (("own", ctypes.c_void_p), ("shared", ctypes.c_void_p), ("num_bytes", ctypes.c_int64))


class KernelCrew(ctypes.Structure):
    """What a rank knows of the crew; the fields are those of `Crew` in crew.cpp, in their order."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (
            "begin", "end", "reduction", "stop_flags", "running_sums", "loss_sums", "gathered", "own_sums", "published",
            "num_taken",
        )),
        *((name, ctypes.c_int64) for name in (
            "num_published", "num_ranks", "rank", "member", "num_virtual_ranks", "first_row", "num_own_rows",
            "num_spins",
        )),
    )  # fmt: skip


class Crew:
    """The memory that all ranks of the node share for it, and who its members are."""

    def __init__(
        self, ranks: Ranks, kernel: ctypes.CDLL, members: Sequence[int], memory: NodeSharedTensor, shapes: Shapes,
        own: Sequence[VirtualRankBatches],
    ) -> None:  # fmt: skip
        rank = ranks.rank
        self.index = members.index(rank) if rank in members else None
        self.num_members = len(members)
        self.tables = _carve(memory.tensor, shapes)
        self._own, self._ranks, self._kernel, self._memory = own, ranks, kernel, memory

    def describe(self, own_sums: torch.Tensor, vectors: Sequence[torch.Tensor]) -> int:
        """Tell the kernel what it needs; return the address of that.

        `own_sums` (k, 2) are this rank's losses and weights of the epoch. `vectors` are what a step changes: those of
        a `KernelOptimizer`, the losses of a call (steps,), and the last loss and stop flag (2,).
        """
        self._num_taken = torch.zeros(1, dtype=torch.int64)
        self._published = (KernelPublished * len(_PUBLISHED))(*(
            KernelPublished(vector.data_ptr(), self.tables[name].data_ptr(), vector.nbytes)
            for name, vector in zip(_PUBLISHED, (*vectors, self._num_taken), strict=True)
        ))  # fmt: skip
        addresses = {
            name: self.tables[name].data_ptr()
            for name in ("begin", "end", "reduction", "stop_flags", "running_sums", "loss_sums", "gathered")
        }
        self._description = KernelCrew(
            **addresses,
            own_sums=own_sums.data_ptr(),
            published=ctypes.addressof(self._published),
            num_taken=self._num_taken.data_ptr(),
            num_published=len(_PUBLISHED),
            num_ranks=self._ranks.world_size,
            rank=self._ranks.rank,
            member=-1 if self.index is None else self.index,
            num_virtual_ranks=len(self.tables["loss_sums"]),
            first_row=self._own[0].virtual_rank,
            num_own_rows=len(self._own),
            num_spins=SPINS,
        )
        return ctypes.addressof(self._description)

    def share_of(self, num_virtual_ranks: int) -> range:
        """Return the virtual ranks whose slices this member computes; on the others, the first member's."""
        each = num_virtual_ranks // self.num_members
        return range((self.index or 0) * each, ((self.index or 0) + 1) * each)

    def rows(self, joins: bool) -> LaidOutRows:
        """Return the rows of this member's slices, and where every rank lays out the order of its own."""
        counts = [int(count) for count in self.tables["sample_counts"]]
        share = self.share_of(len(counts))
        first_rows = [sum(counts[:v]) + v for v in range(len(counts))]  # a row of padding behind each
        # Joined slices are one, whose rows are counted from the first virtual rank of its member.
        each = len(share)
        mine = [source.virtual_rank for source in self._own]
        offsets = [first_rows[v] - first_rows[v // each * each] if joins else 0 for v in mine]
        table = OrderTable(self.tables["order"], mine, offsets)
        samples = [self.tables[name] for name in ("inputs", "targets", "weights")]
        sources = [[tensor[first_rows[v] :].data_ptr() for tensor in samples] for v in share]
        return LaidOutRows(self._own, table, share, sources, joins)

    def reduce(self, partials: torch.Tensor) -> torch.Tensor:
        """Return the sum (2,) over all virtual ranks of their rows, of which `partials` (k, 2) are this rank's.

        See `Reducer.reduce`: in the fixed tree, and without a message, for which ranks without a core wait long.
        Collective.
        """
        total = torch.empty(2, dtype=torch.float64)
        with waiting_in("reduce", self._ranks.cpu.notes):
            self._kernel.sum_at_meeting(
                ctypes.addressof(self._description), partials.contiguous().data_ptr(), total.data_ptr()
            )
        return total

    def epoch_sums(self) -> torch.Tensor:
        """Return the sum (2,) over all virtual ranks as the last call's steps have left it; all ranks hold it."""
        rows, total = self.tables["loss_sums"], torch.empty(2, dtype=torch.float64)
        self._kernel.sum_rows_in_tree(rows.data_ptr(), len(rows), total.data_ptr())
        return total

    def failed_among(self, virtual_ranks: range) -> list[int]:
        """Return those whose sums, joined with their neighbours' on one member, are not finite."""
        finite = torch.isfinite(self.tables["loss_sums"]).all(dim=1).tolist()
        each = len(finite) // self.num_members
        return [v for v in virtual_ranks if not all(finite[v // each * each : (v // each + 1) * each])]

    def close(self) -> None:
        """Give the memory back; nothing that lies in it may be touched afterwards. Collective."""
        self._memory.close()


def open_crew(inputs: EngineInputs, kernel: ctypes.CDLL, most_steps: int) -> Crew | None:
    """Return the crew of a node whose ranks outnumber its cores; None where all ranks shall take steps. Collective."""
    ranks = inputs.ranks
    if not ranks.shares_memory or ranks.world_size <= ranks.node_cores:
        return None
    own = [source for source in inputs.batches if isinstance(source, VirtualRankBatches)]
    if not all(ranks.gather_object(len(own) == len(inputs.batches))):
        return None  # samples from files come to the rank that reads them
    members = choose_members(ranks.gather_object(detect_affinity()), _most_members(inputs))
    while len(members) > 2 and not can_share(ranks, kernel, len(members)):
        members = members[: len(members) // 2]  # many rows, or long ones: fewer members write fewer
    counts = [count for rank in ranks.gather_object([len(source.samples) for source in own]) for count in rank]
    shapes = _shapes(inputs, own[0], counts, kernel, most_steps)
    if not can_share(ranks, kernel, len(members)) or _num_bytes(shapes) > LARGEST_LENT_BYTES:
        return None
    try:
        memory = ranks.cpu.node_shared_tensor((_num_bytes(shapes),), torch.uint8)
    except LaunchError:  # on all ranks: the node has no room for it
        return None
    if memory.fills:
        memory.tensor.zero_()
    memory.publish()
    crew = Crew(ranks, kernel, members, memory, shapes, own)
    crew.tables["sample_counts"].copy_(torch.tensor(counts))
    _lend(own, counts, crew.tables)
    memory.publish()
    return crew


def choose_members(affinities: Sequence[frozenset[int]], most: int) -> list[int]:
    """Choose ranks that can run on a core each, as many as there are up to `most`, cut to a power of two.

    `affinities` are the cores that each rank may use.
    """
    rank_on: dict[int, int] = {}

    def find_core(rank: int, tried: set[int]) -> bool:
        # Kuhn's augmenting path: a core is free, or its rank finds another one.
        for core in sorted(affinities[rank] - tried):
            tried.add(core)
            if core not in rank_on or find_core(rank_on[core], tried):
                rank_on[core] = rank
                return True
        return False

    members: list[int] = []
    for rank in range(len(affinities)):
        if len(members) < most and find_core(rank, set()):
            members.append(rank)
    return members[: 2 ** int(math.log2(max(1, len(members))))]


def _most_members(inputs: EngineInputs) -> int:
    return min(inputs.ranks.node_cores, inputs.plan.num_virtual_ranks)


def _shapes(
    inputs: EngineInputs, source: VirtualRankBatches, counts: Sequence[int], kernel: ctypes.CDLL, most_steps: int
) -> Shapes:
    samples, plan = source.samples, inputs.plan
    num_rows, num_virtual_ranks = sum(counts) + len(counts), plan.num_virtual_ranks
    real, num_parameters = samples.padded_inputs.dtype, kernel.parameter_count()
    meeting = ((kernel.meeting_bytes(),), torch.uint8)
    return {
        **dict.fromkeys(("begin", "end", "reduction"), meeting),
        "stop_flags": ((inputs.ranks.world_size,), torch.float64),
        "losses": ((most_steps,), torch.float64),
        "loss_and_stop": ((2,), torch.float64),
        "num_taken": ((1,), torch.int64),
        **dict.fromkeys(("running_sums", "loss_sums"), ((num_virtual_ranks, 2), torch.float64)),
        "gathered": ((2, num_virtual_ranks, 2), torch.float64),
        "sample_counts": ((num_virtual_ranks,), torch.int64),
        "order": ((plan.steps_per_epoch, num_virtual_ranks, plan.slice_rows), torch.int64),
        "inputs": ((num_rows, *samples.padded_inputs.shape[1:]), real),
        "targets": ((num_rows, *samples.padded_targets.shape[1:]), real),
        "weights": ((num_rows, *samples.padded_weights.shape[1:]), real),
        "parameters": ((num_parameters,), real),
        "first_moment": ((num_parameters,), real),
        "second_moment": ((num_parameters,), real),
        "step_count": ((), torch.float32),
    }


def _lend(own: Sequence[VirtualRankBatches], counts: Sequence[int], tables: Mapping[str, torch.Tensor]) -> None:
    """Copy this rank's samples, with their row of padding, to where the crew finds them."""
    for source in own:
        first = sum(counts[: source.virtual_rank]) + source.virtual_rank
        rows = slice(first, first + len(source.samples) + 1)
        tables["inputs"][rows] = source.samples.padded_inputs
        tables["targets"][rows] = source.samples.padded_targets
        tables["weights"][rows] = source.samples.padded_weights


def _padded_bytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    return -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT


def _num_bytes(shapes: Shapes) -> int:
    return sum(_padded_bytes(*shape) for shape in shapes.values())


def _carve(memory: torch.Tensor, shapes: Shapes) -> dict[str, Any]:
    """Return tensors that lie behind one another in `memory` (bytes,)."""
    tables, start = {}, 0
    for name, (shape, dtype) in shapes.items():
        tables[name] = memory[start : start + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
        start += _padded_bytes(shape, dtype)
    return tables
