"""torch.distributed over mpi4py: a process group in Python that stock wheels of torch accept, for CPU tensors.

torch's own name "mpi" is reserved for builds from source against one MPI library, so ours is registered as "mpi4py":
`dist.init_process_group("mpi4py", store=dist.HashStore(), rank=..., world_size=...)`. DistributedDataParallel and the
collectives of torch.distributed then run over the MPI library that started the ranks.
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
    """A reduction as MPI knows it, by its name for halves, and what the result is divided by."""

    mpi_operation: MPI.Op
    name: str
    divisor: int


def register_mpi_backend(comm: MPI.Intracomm) -> None:
    """Make "mpi4py" a backend of torch.distributed whose default group spans `comm`.

    Subgroups (`dist.new_group`) get communicators of their own. Calling it again replaces `comm`.
    """

    def create_group(options: Any, _: Any) -> MpiProcessGroup:
        ranks = list(options.global_ranks_in_group) or list(range(comm.Get_size()))
        # Collective over the members alone, which are the only ranks that torch lets come here.
        members = comm.Create_group(comm.Get_group().Incl(ranks))
        return MpiProcessGroup(members)

    dist.Backend.register_backend(BACKEND_NAME, create_group, extended_api=True, devices=["cpu"])


class MpiProcessGroup(dist.ProcessGroup):
    """Collectives of torch.distributed over one MPI communicator; each call is blocking and returns finished work.

    Tensors live on the CPU. float16 and bfloat16, which MPI cannot add, are summed in float32 and travel as they are.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        from mpi4py import MPI

        super().__init__(comm.Get_rank(), comm.Get_size())
        self._comm = comm
        self._name = ""
        # All that a call would otherwise look up or build anew: more than a small message itself takes.
        self._memory = TensorMemory(MPI)
        self._in_place = MPI.IN_PLACE
        self._all_reduce, self._numbers_in_place = comm.Allreduce, self._memory.numbers_in_place
        self._sum = _Reduction(MPI.SUM, "sum", 1)
        self._reductions = (
            (dist.ReduceOp.AVG, _Reduction(MPI.SUM, "sum", comm.Get_size())),  # MPI has no mean
            (dist.ReduceOp.MIN, _Reduction(MPI.MIN, "min", 1)),
            (dist.ReduceOp.MAX, _Reduction(MPI.MAX, "max", 1)),
            (dist.ReduceOp.PRODUCT, _Reduction(MPI.PROD, "product", 1)),
        )
        self._done_for_ever = _finished([])

    @property
    def group_name(self) -> str:
        """Name that torch gave to the group; `dist.destroy_process_group(group)` looks it up by that."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        # torch keeps names in a group's C++ backends, of which a group in Python has none.
        self._name = name

    def getBackendName(self) -> str:  # noqa: N802  (torch's name)
        """Name under which torch.distributed knows this group."""
        return BACKEND_NAME

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> dist.Work:
        """Reduce each tensor in place over all ranks. Collective."""
        mpi_operation, name, divisor = self._reduction(opts.reduceOp if opts is not None else _SUM)
        for tensor in tensors:
            # Straight on for what nearly always comes: each further step here costs more than MPI's own share.
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
        """Reduce to rank `opts.rootRank`; the others' tensors keep their values. Collective."""
        reduction = self._reduction(opts.reduceOp)
        for tensor in tensors:
            staged = tensor.detach().clone(memory_format=torch.contiguous_format)
            self._reduce_to(opts.rootRank, staged, reduction)
            if self.rank() == opts.rootRank:
                tensor.copy_(staged)
        return self._work(tensors, opts)

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any) -> dist.Work:
        """Copy rank `opts.rootRank`'s tensors to all. Collective."""
        for tensor in tensors:
            staged = tensor.contiguous()
            self._comm.Bcast(self._memory.values(staged), opts.rootRank)
            _copy_back(tensor, staged)
        return self._work(tensors, opts)

    def allgather(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> dist.Work:
        """Give every rank every rank's tensor, one list of `size` tensors an input. Collective."""
        for parts, tensor in zip(outputs, inputs, strict=True):
            gathered = torch.empty((self.size(), *tensor.shape), dtype=tensor.dtype)
            staged = tensor.contiguous()
            self._comm.Allgather(self._memory.values(staged), self._memory.values(gathered))
            for part, row in zip(parts, gathered, strict=True):
                part.copy_(row)
        return self._work([part for parts in outputs for part in parts], opts)

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> dist.Work:
        """Concatenate the ranks' tensors in `output`. Collective."""
        staged, sent = output.contiguous(), tensor.contiguous()
        self._comm.Allgather(self._memory.values(sent), self._memory.values(staged))
        _copy_back(output, staged)
        return self._work([output], opts)

    all_gather_single = _allgather_base

    def gather(self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any) -> dist.Work:
        """Collect the ranks' tensors on rank `opts.rootRank`. Collective."""
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
        """Hand rank `opts.rootRank`'s tensors out, one a rank. Collective."""
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
        """Reduce `size` tensors over all ranks and leave number `rank` here. Collective."""
        for output, parts in zip(outputs, inputs, strict=True):
            self._reduce_scatter_base(output, torch.stack(list(parts)), opts)
        return self._work(outputs, opts)

    def _reduce_scatter_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> dist.Work:
        """Reduce `tensor` over all ranks and leave this rank's part in `output`. Collective."""
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
        """Send row block r of `tensor` to rank r; blocks are equal where no counts are given. Collective."""
        staged, sent = output.contiguous(), tensor.contiguous()
        self._comm.Alltoallv(
            self._memory.parts(sent, self._value_counts(sent, input_rows)),
            self._memory.parts(staged, self._value_counts(staged, output_rows)),
        )
        _copy_back(output, staged)
        return self._work([output], opts)

    all_to_all_single = alltoall_base

    def send(self, tensors: Sequence[torch.Tensor], destination: int, tag: int = 0) -> dist.Work:
        """Send to one rank. Returns when the memory may be used again."""
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
        # A caller that waits by itself asks nothing of the work but to be done. DistributedDataParallel and callers
        # with async_op read the tensors from it. torch before asyncOp was known gets a work of its own each time.
        return _finished(tensors) if getattr(opts, "asyncOp", True) else self._done_for_ever

    def _value_counts(self, tensor: torch.Tensor, rows: list[int]) -> list[int]:
        row_size = math.prod(tensor.shape[1:])
        return [count * row_size for count in rows or [tensor.shape[0] // self.size()] * self.size()]


def _finished(tensors: Sequence[torch.Tensor]) -> dist.Work:
    # DistributedDataParallel reads a list of tensors from the future. The function is private to torch: used only here.
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
