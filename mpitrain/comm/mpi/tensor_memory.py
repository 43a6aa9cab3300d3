"""MPI buffers of CPU tensors, without a copy, in less than a microsecond.

A buffer is an address and keeps no tensor alive: store the result of `contiguous()` in a variable until the MPI call
has returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

HALF_DTYPES = (torch.float16, torch.bfloat16)


class TensorMemory:
    """Buffers and datatypes of tensors for mpi4py. Made once per communicator: it takes longer than a small message."""

    def __init__(self, mpi: ModuleType) -> None:
        # From address and length: the buffers of numpy and dlpack take two and eight times as long.
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
        # To send values any datatype of the same size works. Counts are in values, not bytes, so that 32-bit counts
        # allow larger messages.
        self._moving = {1: mpi.BYTE, 2: mpi.INT16_T, 4: mpi.INT32_T, 8: mpi.INT64_T, 16: mpi.C_DOUBLE_COMPLEX}

    def numbers_in_place(self, tensor: torch.Tensor) -> list[Any] | None:
        """Return buffer and datatype for a reduction; None if MPI cannot reduce the tensor in place.

        That is the case for other dtypes, devices and memory layouts. The tensor must exist until the MPI call returns.
        """
        datatype = self._datatypes.get(tensor.dtype)
        if datatype is None or not (tensor.is_cpu and tensor.is_contiguous()):
            return None
        return [self._from_address(tensor.data_ptr(), tensor.nbytes), datatype]

    def numbers(self, tensor: torch.Tensor) -> list[Any]:
        """Return `numbers_in_place`. Raises TypeError for a dtype that MPI cannot add.

        Raises ValueError for a tensor that is not contiguous or not on the CPU.
        """
        numbers = self.numbers_in_place(tensor)
        if numbers is None:
            _refuse(tensor)
            raise TypeError(f"MPI has no sum for {tensor.dtype}: convert to float32 before the collective")
        return numbers

    def values(self, tensor: torch.Tensor) -> list[Any]:
        """Return buffer and datatype of a contiguous CPU tensor of any dtype, for sending or receiving it.

        The tensor must exist until the MPI call returns. Raises ValueError if it is not contiguous or not on the CPU.
        """
        return [self.buffer(tensor), self._moving[tensor.element_size()]]

    def parts(self, tensor: torch.Tensor, counts: Sequence[int]) -> list[Any]:
        """Return `values` for a collective with `counts[r]` values for rank r, contiguous in rank order."""
        return [self.buffer(tensor), list(counts), self._moving[tensor.element_size()]]

    def buffer(self, tensor: torch.Tensor) -> Any:
        """Return the buffer only, for use with the caller's datatype. Raises ValueError as `values`."""
        _refuse(tensor)
        return self._from_address(tensor.data_ptr(), tensor.nbytes)


def _refuse(tensor: torch.Tensor) -> None:
    if not tensor.is_cpu:
        raise ValueError(f"MPI supports CPU tensors only, got one on {tensor.device}: move it with tensor.cpu() first")
    if not tensor.is_contiguous():
        raise ValueError(
            f"MPI needs a contiguous tensor, got strides {tensor.stride()} for shape {tuple(tensor.shape)}"
        )
