"""torch.distributed over mpi4py: a process group in Python that stock wheels of torch accept, for CPU tensors.

torch's own name "mpi" is reserved for builds from source against one MPI library, so ours is registered as "mpi4py":
`dist.init_process_group("mpi4py", store=dist.HashStore(), rank=..., world_size=...)`. DistributedDataParallel and the
collectives of torch.distributed then run over the MPI library that started the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future
from torch.futures import Future

from mpitrain.comm.mpi_communicator import buffer_of

if TYPE_CHECKING:
    from mpi4py import MPI

BACKEND_NAME = "mpi4py"
_TAG = 7


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

    Tensors live on the CPU; reductions refuse float16 and bfloat16 (TypeError), which MPI cannot add.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        super().__init__(comm.Get_rank(), comm.Get_size())
        self._comm = comm
        self._name = ""

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
        operation, divisor = self._operation(getattr(opts, "reduceOp", dist.ReduceOp.SUM))
        for tensor in tensors:
            staged = tensor.contiguous()
            self._comm.Allreduce(_in_place(), buffer_of(staged), operation)
            tensor.copy_(staged.div_(divisor) if divisor > 1 else staged)
        return _finished(tensors)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> dist.Work:
        """Reduce several tensors in place. Collective."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> dist.Work:
        """Reduce to rank `opts.rootRank`; the others' tensors keep their values. Collective."""
        operation, divisor = self._operation(opts.reduceOp)
        for tensor in tensors:
            total = torch.empty_like(tensor, memory_format=torch.contiguous_format)
            self._comm.Reduce(buffer_of(tensor.contiguous()), buffer_of(total), operation, opts.rootRank)
            if self.rank() == opts.rootRank:
                tensor.copy_(total.div_(divisor) if divisor > 1 else total)
        return _finished(tensors)

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any) -> dist.Work:
        """Copy rank `opts.rootRank`'s tensors to all. Collective."""
        for tensor in tensors:
            staged = tensor.contiguous()
            self._comm.Bcast(_bytes_of(staged), opts.rootRank)
            _copy_back(tensor, staged)
        return _finished(tensors)

    def allgather(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> dist.Work:
        """Give every rank every rank's tensor, one list of `size` tensors an input. Collective."""
        for parts, tensor in zip(outputs, inputs, strict=True):
            gathered = torch.empty((self.size(), *tensor.shape), dtype=tensor.dtype)
            self._comm.Allgather(_bytes_of(tensor.contiguous()), _bytes_of(gathered))
            for part, row in zip(parts, gathered, strict=True):
                part.copy_(row)
        return _finished([part for parts in outputs for part in parts])

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> dist.Work:
        """Concatenate the ranks' tensors in `output`. Collective."""
        staged = output.contiguous()
        self._comm.Allgather(_bytes_of(tensor.contiguous()), _bytes_of(staged))
        _copy_back(output, staged)
        return _finished([output])

    all_gather_single = _allgather_base

    def gather(self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any) -> dist.Work:
        """Collect the ranks' tensors on rank `opts.rootRank`. Collective."""
        for index, tensor in enumerate(inputs):
            at_root = self.rank() == opts.rootRank
            gathered = torch.empty((self.size() if at_root else 0, *tensor.shape), dtype=tensor.dtype)
            self._comm.Gather(_bytes_of(tensor.contiguous()), _bytes_of(gathered) if at_root else None, opts.rootRank)
            if at_root:
                for part, row in zip(outputs[index], gathered, strict=True):
                    part.copy_(row)
        return _finished([part for parts in outputs for part in parts])

    def scatter(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any
    ) -> dist.Work:
        """Hand rank `opts.rootRank`'s tensors out, one a rank. Collective."""
        for index, output in enumerate(outputs):
            at_root = self.rank() == opts.rootRank
            parts = torch.stack([part.contiguous() for part in inputs[index]]) if at_root else None
            staged = output.contiguous()
            self._comm.Scatter(_bytes_of(parts) if parts is not None else None, _bytes_of(staged), opts.rootRank)
            _copy_back(output, staged)
        return _finished(outputs)

    def reduce_scatter(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any
    ) -> dist.Work:
        """Reduce `size` tensors over all ranks and leave number `rank` here. Collective."""
        for output, parts in zip(outputs, inputs, strict=True):
            self._reduce_scatter_base(output, torch.stack(list(parts)), opts)
        return _finished(outputs)

    def _reduce_scatter_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any) -> dist.Work:
        """Reduce `tensor` over all ranks and leave this rank's part in `output`. Collective."""
        operation, divisor = self._operation(opts.reduceOp)
        part = torch.empty_like(output, memory_format=torch.contiguous_format)
        self._comm.Reduce_scatter_block(buffer_of(tensor.contiguous()), buffer_of(part), operation)
        output.copy_(part.div_(divisor) if divisor > 1 else part)
        return _finished([output])

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
            [_bytes_of(sent), self._byte_counts(sent, input_rows)],
            [_bytes_of(staged), self._byte_counts(staged, output_rows)],
        )
        _copy_back(output, staged)
        return _finished([output])

    all_to_all_single = alltoall_base

    def send(self, tensors: Sequence[torch.Tensor], destination: int, tag: int = 0) -> dist.Work:
        """Send to one rank. Returns when the memory may be used again."""
        for tensor in tensors:
            self._comm.Send(_bytes_of(tensor.contiguous()), destination, _TAG + tag)
        return _finished(tensors)

    def recv(self, tensors: Sequence[torch.Tensor], source: int, tag: int = 0) -> dist.Work:
        """Receive from one rank."""
        for tensor in tensors:
            staged = tensor.contiguous()
            self._comm.Recv(_bytes_of(staged), source, _TAG + tag)
            _copy_back(tensor, staged)
        return _finished(tensors)

    def barrier(self, opts: Any = None) -> dist.Work:
        """Wait for all ranks. Collective."""
        self._comm.Barrier()
        return _finished([])

    def _operation(self, operation: Any) -> tuple[MPI.Op, int]:
        # MPI has no mean: AVG is a sum and one division by the number of ranks.
        from mpi4py import MPI

        known = {
            dist.ReduceOp.SUM: MPI.SUM,
            dist.ReduceOp.MIN: MPI.MIN,
            dist.ReduceOp.MAX: MPI.MAX,
            dist.ReduceOp.PRODUCT: MPI.PROD,
        }
        for candidate, mpi_operation in known.items():
            if operation == candidate:
                return mpi_operation, 1
        if operation == dist.ReduceOp.AVG:
            return MPI.SUM, self.size()
        raise ValueError(f"the mpi backend has no reduction {operation}: use SUM, AVG, MIN, MAX or PRODUCT")

    def _byte_counts(self, tensor: torch.Tensor, rows: list[int]) -> list[int]:
        row_bytes = tensor[0].numel() * tensor.element_size() if tensor.shape[0] else 0
        return [count * row_bytes for count in rows or [tensor.shape[0] // self.size()] * self.size()]


def _finished(tensors: Sequence[torch.Tensor]) -> dist.Work:
    # DistributedDataParallel reads a list of tensors from the future. The function is private to torch: used only here.
    future: Future[list[torch.Tensor]] = Future()
    future.set_result(list(tensors))
    work: dist.Work = _create_work_from_future(future)
    return work


def _bytes_of(tensor: torch.Tensor) -> Any:
    # Moving needs no arithmetic: every dtype, bfloat16 too, travels as bytes.
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def _copy_back(tensor: torch.Tensor, staged: torch.Tensor) -> None:
    if staged.data_ptr() != tensor.data_ptr():
        tensor.copy_(staged)


def _in_place() -> Any:
    from mpi4py import MPI

    return MPI.IN_PLACE
