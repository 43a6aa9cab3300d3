"""The CPU's description from inside this process: CPUID on x86-64, HWCAP on aarch64.

/proc/cpuinfo is not used: under an emulator it describes the host, whereas CPUID describes the CPU of this process.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# Python has no function for CPUID. void ask(uint32_t leaf, uint32_t subleaf, uint32_t registers[4]), System V ABI:
_ASK_CPUID = bytes.fromhex(
    "53"  # push rbx, a callee-saved register that CPUID overwrites
    "89f8 89f1 4989d0"  # mov eax, edi; mov ecx, esi; mov r8, rdx
    "0fa2"  # cpuid
    "418900 41895804 41894808 4189500c"  # mov [r8], eax; [r8+4], ebx; [r8+8], ecx; [r8+12], edx
    "5b c3"  # pop rbx; ret
)
_READ_XCR0 = bytes.fromhex("31c9 0f01d0 c3")  # xor ecx, ecx; xgetbv; ret
_OSXSAVE = 1 << 27  # ecx of leaf 1: the system has enabled XGETBV, which is otherwise an invalid instruction
_AT_HWCAP = 16

Ask = Callable[[int, int], tuple[int, int, int, int]]


@dataclass(frozen=True)
class CpuidAnswers:
    """`ask(leaf, subleaf)` returns eax, ebx, ecx and edx; `xcr0` has a bit per register set that the system saves."""

    ask: Ask
    xcr0: int


@contextmanager
def cpuid_answers() -> Iterator[CpuidAnswers | None]:
    """Yield the results of CPUID; None if the system does not allow code in this process's memory."""
    code = _ASK_CPUID.ljust(64, b"\xc3") + _READ_XCR0
    # Write first, then make executable: hardened systems refuse memory that is both at once.
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as memory:
        memory.write(code)
        view = (ctypes.c_char * mmap.PAGESIZE).from_buffer(memory)
        address = ctypes.addressof(view)
        try:
            yield _answers(address) if _make_executable(address) else None
        finally:
            del view  # a memory map cannot be closed while a buffer uses it


def _make_executable(address: int) -> bool:
    mprotect = ctypes.CDLL(None).mprotect
    mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return bool(mprotect(address, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC) == 0)


def _answers(address: int) -> CpuidAnswers:
    number, registers = ctypes.c_uint32, ctypes.c_uint32 * 4
    call = ctypes.CFUNCTYPE(None, number, number, ctypes.POINTER(number))(address)

    def ask(leaf: int, subleaf: int) -> tuple[int, int, int, int]:
        found = registers()
        call(leaf, subleaf, found)
        return found[0], found[1], found[2], found[3]

    read_xcr0 = ctypes.CFUNCTYPE(number)(address + 64)
    return CpuidAnswers(ask, read_xcr0() if ask(1, 0)[2] & _OSXSAVE else 0)


def hwcap() -> int:
    """Return Linux's HWCAP bits, which describe the instruction sets of an aarch64 CPU."""
    getauxval = ctypes.CDLL(None).getauxval
    getauxval.argtypes, getauxval.restype = (ctypes.c_ulong,), ctypes.c_ulong
    return int(getauxval(_AT_HWCAP))
