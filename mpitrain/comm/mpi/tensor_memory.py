"""The memory of CPU tensors as MPI sees it: described without a copy, in less than a microsecond.

A description is an address and keeps no tensor alive: give what `contiguous()` returns a name that outlives the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

HALF_DTYPES = (torch.float16, torch.bfloat16)


class TensorMemory:
    """Describes tensors to mpi4py. One a communicator: the table costs more than a small message does."""

    def __init__(self, mpi: ModuleType) -> None:
        # An address and a length: numpy's and dlpack's ways to the same memory take two and eight times as long.
        self._from_address = mpi.buffer.fromaddress
        self._datatypes = {
            torch.float32: mpi.FLOAT,
            torch.float64: mpi.DOUBLE,
            torch.int64: mpi.INT64_T,
            torch.int32: mpi.INT32_T,
            torch.int16: mpi.INT16_T,
            torch.int8: mpi.INT8_T,
            torch.uint8: mpi.UINT8_T,
            torch.complex64: mpi.C_FLOAT_COMPLEX,
            torch.complex128: mpi.C_DOUBLE_COMPLEX,
        }
        # Moving needs no arithmetic: any type of the size will do. Counts of values reach further than those of bytes.
        self._moving = {1: mpi.BYTE, 2: mpi.INT16_T, 4: mpi.INT32_T, 8: mpi.INT64_T, 16: mpi.C_DOUBLE_COMPLEX}

    def numbers_in_place(self, tensor: torch.Tensor) -> list[Any] | None:
        """Return buffer and datatype, for MPI to compute with; None where it must not touch the memory as it is.

        The tensor must outlive the call that uses them.
        """
        datatype = self._datatypes.get(tensor.dtype)
        if datatype is None or not (tensor.is_cpu and tensor.is_contiguous()):
            return None
        return [self._from_address(tensor.data_ptr(), tensor.nbytes), datatype]

    def numbers(self, tensor: torch.Tensor) -> list[Any]:
        """Return `numbers_in_place`. Raises TypeError for dtypes that MPI cannot add, ValueError for other memory."""
        numbers = self.numbers_in_place(tensor)
        if numbers is None:
            _refuse(tensor)
            raise TypeError(f"MPI has no sum for {tensor.dtype}: convert to float32 before the collective")
        return numbers

    def values(self, tensor: torch.Tensor) -> list[Any]:
        """Return buffer and datatype of a contiguous CPU tensor of any dtype, for MPI to move.

        The tensor must outlive the call that uses them. Raises ValueError for other memory.
        """
        return [self.buffer(tensor), self._moving[tensor.element_size()]]

    def parts(self, tensor: torch.Tensor, counts: Sequence[int]) -> list[Any]:
        """Return `values` for a collective in which rank r's part has `counts[r]` values, one after the other."""
        return [self.buffer(tensor), list(counts), self._moving[tensor.element_size()]]

    def buffer(self, tensor: torch.Tensor) -> Any:
        """Return the buffer alone, for a datatype of the caller's own."""
        _refuse(tensor)
        return self._from_address(tensor.data_ptr(), tensor.nbytes)


def _refuse(tensor: torch.Tensor) -> None:
    if not tensor.is_cpu:
        raise ValueError(f"MPI carries CPU tensors only, got one on {tensor.device}: move it with tensor.cpu() first")
    if not tensor.is_contiguous():
        raise ValueError(
            f"MPI needs a contiguous tensor, got strides {tensor.stride()} for shape {tuple(tensor.shape)}"
        )
