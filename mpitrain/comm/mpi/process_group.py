"""torch.distributed over mpi4py: a process group in Python for CPU tensors, which works with torch's binary wheels.

torch's name "mpi" is reserved for builds from source against one MPI library, so this backend has the name "mpi4py":
`dist.init_process_group("mpi4py", store=dist.HashStore(), rank=..., world_size=...)`. DistributedDataParallel and the
collectives of torch.distributed then use the MPI library that started the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future
from torch.futures import Future

from mpitrain.comm.mpi.half_precision import all_reduce_halves, reduce_scatter_halves
from mpitrain.comm.mpi.tensor_memory import HALF_DTYPES, TensorMemory

if TYPE_CHECKING:
    from mpi4py import MPI

BACKEND_NAME = "mpi4py"
_TAG = 7
_SUM = dist.ReduceOp.SUM


class _Reduction(NamedTuple):
    """A reduction: the MPI operation, its name for float16 and bfloat16, and the divisor of the result."""

    mpi_operation: MPI.Op
    name: str
    divisor: int


def register_mpi_backend(comm: MPI.Intracomm) -> None:
    """Register the backend "mpi4py" of torch.distributed, with a default group over the ranks of `comm`.

    Each subgroup (`dist.new_group`) gets its own communicator. Another call replaces `comm`.
    """

    def create_group(options: Any, _: Any) -> MpiProcessGroup:
        ranks = list(options.global_ranks_in_group) or list(range(comm.Get_size()))
        # MPI_Comm_create_group is collective over the members only; torch calls this function on no other ranks.
        members = comm.Create_group(comm.Get_group().Incl(ranks))
        return MpiProcessGroup(members)

    dist.Backend.register_backend(BACKEND_NAME, create_group, extended_api=True, devices=["cpu"])


class MpiProcessGroup(dist.ProcessGroup):
    """Collectives of torch.distributed over one MPI communicator; each call is blocking and returns finished work.

    Tensors must be on the CPU. float16 and bfloat16, which MPI cannot add, are sent unconverted and summed in float32.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        from mpi4py import MPI

        super().__init__(comm.Get_rank(), comm.Get_size())
        self._comm = comm
        self._name = ""
        # Prepared once: to look these up in each call would take longer than a small message.
        self._memory = TensorMemory(MPI)
        self._in_place = MPI.IN_PLACE
        self._all_reduce, self._numbers_in_place = comm.Allreduce, self._memory.numbers_in_place
        self._sum = _Reduction(MPI.SUM, "sum", 1)
        self._reductions = (
            (dist.ReduceOp.AVG, _Reduction(MPI.SUM, "sum", comm.Get_size())),  # MPI has no operation for the mean
            (dist.ReduceOp.MIN, _Reduction(MPI.MIN, "min", 1)),
            (dist.ReduceOp.MAX, _Reduction(MPI.MAX, "max", 1)),
            (dist.ReduceOp.PRODUCT, _Reduction(MPI.PROD, "product", 1)),
        )
        self._done_for_ever = _finished([])

    @property
    def group_name(self) -> str:
        """Name given by torch, by which `dist.destroy_process_group(group)` finds the group."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        # torch stores the name in a group's C++ backends; a group in Python has none.
        self._name = name

    def getBackendName(self) -> str:  # noqa: N802  (torch's name)
        """Return the name of the backend in torch.distributed."""
        return BACKEND_NAME

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> dist.Work:
        """Reduce each tensor in place over all ranks. Collective."""
        mpi_operation, name, divisor = self._reduction(opts.reduceOp if opts is not None else _SUM)
        for tensor in tensors:
            # Fast path for the usual dtypes: the overhead of any further step exceeds MPI's time for small tensors.
            numbers = self._numbers_in_place(tensor)
            if numbers is not None:
                self._all_reduce(self._in_place, numbers, mpi_operation)
                if divisor > 1:
                    tensor.detach().div_(divisor)
            else:
                self._reduce_staged(tensor, mpi_operation, name, divisor)
        return self._work(tensors, opts)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> dist.Work:
        """Reduce several tensors in place. Collective."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> dist.Work:
        """Reduce to rank `opts.rootRank`; the tensors of other ranks keep their values. Collective."""
        reduction = self._reduction(opts.reduceOp)
        for tensor in tensors:
            staged = tensor.detach().clone(memory_format=torch.contiguous_format)
            self._reduce_to(opts.rootRank, staged, reduction)
            if self.rank() == opts.rootRank:
                tensor.copy_(staged)
        return self._work(tensors, opts)

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any) -> dist.Work:
        """Copy the tensors of rank `opts.rootRank` to all ranks. Collective."""
        for tensor in tensors:
            staged = tensor.contiguous()
            self._comm.Bcast(self._memory.values(staged), opts.rootRank)
            _copy_back(tensor, staged)
        return self._work(tensors, opts)

    def allgather(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> dist.Work:
        """Gather the tensors of all ranks on every rank, into one list of `size` tensors per input. Collective."""
        for parts, tensor in zip(outputs, inputs, strict=True):
            gathered = torch.empty((self.size(), *tensor.shape), dtype=tensor.dtype)
            staged = tensor.contiguous()
            self._comm.Allgather(self._memory.values(staged), self._memory.values(gathered))
            for part, row in zip(parts, gathered, strict=True):
                part.copy_(row)
        return self._work([part for parts in outputs for part in parts], opts)

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> dist.Work:
        """Gather the tensors of all ranks into `output`, concatenated in rank order. Collective."""
        staged, sent = output.contiguous(), tensor.contiguous()
        self._comm.Allgather(self._memory.values(sent), self._memory.values(staged))
        _copy_back(output, staged)
        return self._work([output], opts)

    all_gather_single = _allgather_base

    def gather(self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any) -> dist.Work:
        """Gather the tensors of all ranks on rank `opts.rootRank`. Collective."""
        for index, tensor in enumerate(inputs):
            at_root = self.rank() == opts.rootRank
            gathered = torch.empty((self.size() if at_root else 0, *tensor.shape), dtype=tensor.dtype)
            staged = tensor.contiguous()
            self._comm.Gather(
                self._memory.values(staged), self._memory.values(gathered) if at_root else None, opts.rootRank
            )
            if at_root:
                for part, row in zip(outputs[index], gathered, strict=True):
                    part.copy_(row)
        return self._work([part for parts in outputs for part in parts], opts)

    def scatter(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any
    ) -> dist.Work:
        """Scatter the tensors of rank `opts.rootRank`, one to each rank. Collective."""
        for index, output in enumerate(outputs):
            at_root = self.rank() == opts.rootRank
            parts = torch.stack([part.contiguous() for part in inputs[index]]) if at_root else None
            staged = output.contiguous()
            self._comm.Scatter(
                self._memory.values(parts) if parts is not None else None, self._memory.values(staged), opts.rootRank
            )
            _copy_back(output, staged)
        return self._work(outputs, opts)

    def reduce_scatter(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any
    ) -> dist.Work:
        """Reduce `size` tensors over all ranks; each rank receives the one with its number. Collective."""
        for output, parts in zip(outputs, inputs, strict=True):
            self._reduce_scatter_base(output, torch.stack(list(parts)), opts)
        return self._work(outputs, opts)

    def _reduce_scatter_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> dist.Work:
        """Reduce `tensor` over all ranks; `output` receives this rank's part. Collective."""
        reduction = self._reduction(opts.reduceOp)
        staged = tensor.contiguous()
        if staged.dtype in HALF_DTYPES:
            counts = [output.numel()] * self.size()
            part = reduce_scatter_halves(
                self._comm, self._memory, staged.view(-1), counts, reduction.name, reduction.divisor
            )
        else:
            part = output if output.is_contiguous() else output.contiguous()
            self._comm.Reduce_scatter_block(
                self._memory.numbers(staged), self._memory.numbers(part), reduction.mpi_operation
            )
            _divide(part, reduction.divisor)
        if part is not output:
            output.copy_(part.view(output.shape))
        return self._work([output], opts)

    reduce_scatter_single = _reduce_scatter_base

    def alltoall_base(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_rows: list[int],
        input_rows: list[int],
        opts: Any = None,
    ) -> dist.Work:
        """Send row block r of `tensor` to rank r; without row counts all blocks are equal. Collective."""
        staged, sent = output.contiguous(), tensor.contiguous()
        self._comm.Alltoallv(
            self._memory.parts(sent, self._value_counts(sent, input_rows)),
            self._memory.parts(staged, self._value_counts(staged, output_rows)),
        )
        _copy_back(output, staged)
        return self._work([output], opts)

    all_to_all_single = alltoall_base

    def send(self, tensors: Sequence[torch.Tensor], destination: int, tag: int = 0) -> dist.Work:
        """Send to one rank. Returns when the tensors' memory may be modified."""
        for tensor in tensors:
            staged = tensor.contiguous()
            self._comm.Send(self._memory.values(staged), destination, _TAG + tag)
        return _finished(tensors)

    def recv(self, tensors: Sequence[torch.Tensor], source: int, tag: int = 0) -> dist.Work:
        """Receive from one rank."""
        for tensor in tensors:
            staged = tensor.contiguous()
            self._comm.Recv(self._memory.values(staged), source, _TAG + tag)
            _copy_back(tensor, staged)
        return _finished(tensors)

    def barrier(self, opts: Any = None) -> dist.Work:
        """Wait for all ranks. Collective."""
        self._comm.Barrier()
        return self._work([], opts)

    def _reduction(self, operation: Any) -> _Reduction:
        if operation == _SUM:  # nearly always
            return self._sum
        for candidate, reduction in self._reductions:
            if operation == candidate:
                return reduction
        raise ValueError(f"the mpi backend has no reduction {operation}: use SUM, AVG, MIN, MAX or PRODUCT")

    def _reduce_staged(self, tensor: torch.Tensor, mpi_operation: MPI.Op, name: str, divisor: int) -> None:
        staged = tensor.detach().contiguous()
        if tensor.dtype in HALF_DTYPES:
            all_reduce_halves(self._comm, self._memory, staged, name, divisor)
        else:
            self._all_reduce(self._in_place, self._memory.numbers(staged), mpi_operation)
            _divide(staged, divisor)
        _copy_back(tensor, staged)

    def _reduce_to(self, root: int, tensor: torch.Tensor, reduction: _Reduction) -> None:
        if tensor.dtype in HALF_DTYPES:
            all_reduce_halves(self._comm, self._memory, tensor, reduction.name, reduction.divisor)
            return
        numbers = self._memory.numbers(tensor)
        at_root = self.rank() == root
        self._comm.Reduce(
            self._in_place if at_root else numbers, numbers if at_root else None, reduction.mpi_operation, root
        )
        _divide(tensor, reduction.divisor)

    def _work(self, tensors: Sequence[torch.Tensor], opts: Any) -> dist.Work:
        # DistributedDataParallel and callers with async_op read the tensors from the work. Synchronous callers only
        # wait for it: they share one finished work. torch versions without asyncOp always get a new one.
        return _finished(tensors) if getattr(opts, "asyncOp", True) else self._done_for_ever

    def _value_counts(self, tensor: torch.Tensor, rows: list[int]) -> list[int]:
        row_size = math.prod(tensor.shape[1:])
        return [count * row_size for count in rows or [tensor.shape[0] // self.size()] * self.size()]


def _finished(tensors: Sequence[torch.Tensor]) -> dist.Work:
    # DistributedDataParallel reads a list of tensors from the future. torch's private function is used only here.
    future: Future[list[torch.Tensor]] = Future()
    future.set_result(list(tensors))
    work: dist.Work = _create_work_from_future(future)
    return work


def _divide(tensor: torch.Tensor, divisor: int) -> None:
    if divisor > 1:
        tensor.detach().div_(divisor)


def _copy_back(tensor: torch.Tensor, staged: torch.Tensor) -> None:
    if staged.data_ptr() != tensor.data_ptr():
        tensor.copy_(staged)
