"""The CPU as this process sees it: vendor, model and instruction sets.

`python -m mpitrain.cluster.cpu.identity` prints it as JSON, for callers that run it on another node or in an emulator.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import platform
import struct
import sys
from dataclasses import dataclass

from mpitrain.cluster.cpu.cpuid import CpuidAnswers, cpuid_answers, hwcap

_FEATURES, _MORE_FEATURES, _EXTENDED = 1, 7, 0x80000001
_BRAND_LEAVES = (0x80000002, 0x80000003, 0x80000004)
_AVX_SAVED, _AVX512_SAVED = 0x06, 0xE6  # bits of XCR0: the system saves these registers on a context switch

# Compiler's name: leaf, register (0 eax, 1 ebx, 2 ecx, 3 edx), bit, register sets that the system must save.
# The C++ program's machine.cpp has the same table.
_X86_INSTRUCTION_SETS = {
    "sse3": (_FEATURES, 2, 0, 0),
    "ssse3": (_FEATURES, 2, 9, 0),
    "sse4.1": (_FEATURES, 2, 19, 0),
    "sse4.2": (_FEATURES, 2, 20, 0),
    "popcnt": (_FEATURES, 2, 23, 0),
    "cx16": (_FEATURES, 2, 13, 0),
    "sahf": (_EXTENDED, 2, 0, 0),
    "movbe": (_FEATURES, 2, 22, 0),
    "bmi": (_MORE_FEATURES, 1, 3, 0),
    "bmi2": (_MORE_FEATURES, 1, 8, 0),
    "lzcnt": (_EXTENDED, 2, 5, 0),
    "avx": (_FEATURES, 2, 28, _AVX_SAVED),
    "f16c": (_FEATURES, 2, 29, _AVX_SAVED),
    "fma": (_FEATURES, 2, 12, _AVX_SAVED),
    "avx2": (_MORE_FEATURES, 1, 5, _AVX_SAVED),
    "avx512f": (_MORE_FEATURES, 1, 16, _AVX512_SAVED),
    "avx512bw": (_MORE_FEATURES, 1, 30, _AVX512_SAVED),
    "avx512cd": (_MORE_FEATURES, 1, 28, _AVX512_SAVED),
    "avx512dq": (_MORE_FEATURES, 1, 17, _AVX512_SAVED),
    "avx512vl": (_MORE_FEATURES, 1, 31, _AVX512_SAVED),
}
_AARCH64_INSTRUCTION_SETS = {"fp": 0, "asimd": 1, "lse": 8, "sve": 22}  # bits of HWCAP


@dataclass(frozen=True)
class CpuIdentity:
    """A CPU as this process sees it. `instruction_sets` is None if it cannot be queried."""

    architecture: str
    vendor: str
    family: int
    model: int
    brand: str
    instruction_sets: tuple[str, ...] | None

    def __str__(self) -> str:
        sets = "unknown" if self.instruction_sets is None else " ".join(self.instruction_sets)
        return f"{self.name}; instruction sets: {sets}"

    @property
    def name(self) -> str:
        """Vendor, family, model and brand as text; the C++ program writes the same."""
        if not self.vendor:
            return self.architecture
        return f"{self.vendor} family {self.family} model {self.model} ({self.brand or 'no brand'})"


@functools.cache
def detect_cpu() -> CpuIdentity:
    """Return the CPU of this process, which may be emulated.

    Returns
    -------
    CpuIdentity
        Architecture, vendor, family, model, brand and instruction sets, from CPUID (x86-64) or HWCAP (aarch64, without
        vendor and brand). If neither can be queried: the architecture only, with `instruction_sets=None`.

    Notes
    -----
    Queried once per process; later calls return the same object.
    """
    architecture = platform.machine()
    if architecture in ("x86_64", "AMD64"):
        with cpuid_answers() as answers:
            if answers is not None:
                return identity_from_cpuid(answers)
    if architecture == "aarch64":
        return identity_from_hwcap(hwcap())
    return CpuIdentity(architecture, "", 0, 0, "", None)


def identity_from_cpuid(cpu: CpuidAnswers) -> CpuIdentity:
    """Return the identity of an x86-64 CPU from the results of CPUID."""
    _, *name = cpu.ask(0, 0)
    vendor = struct.pack("<3I", name[0], name[2], name[1]).decode("ascii", "replace")
    signature = cpu.ask(_FEATURES, 0)[0]
    family, model = (signature >> 8) & 0xF, (signature >> 4) & 0xF
    if family in (6, 15):
        model += ((signature >> 16) & 0xF) << 4
    if family == 15:
        family += (signature >> 20) & 0xFF
    return CpuIdentity("x86_64", vendor, family, model, _brand(cpu), _x86_instruction_sets(cpu))


def identity_from_hwcap(bits: int) -> CpuIdentity:
    """Return the identity of an aarch64 CPU without its vendor, which not every system lets a program read."""
    found = tuple(name for name, bit in _AARCH64_INSTRUCTION_SETS.items() if bits >> bit & 1)
    return CpuIdentity("aarch64", "", 0, 0, "", found)


def _brand(cpu: CpuidAnswers) -> str:
    if cpu.ask(0x80000000, 0)[0] < _BRAND_LEAVES[-1]:
        return ""
    text = b"".join(struct.pack("<4I", *cpu.ask(leaf, 0)) for leaf in _BRAND_LEAVES)
    return " ".join(text.partition(b"\0")[0].decode("ascii", "replace").split())


def _x86_instruction_sets(cpu: CpuidAnswers) -> tuple[str, ...]:
    # For a leaf beyond the largest one CPUID returns the values of another leaf.
    largest = {leaf: cpu.ask(leaf, 0)[0] for leaf in (0, 0x80000000)}
    answers = {
        leaf: cpu.ask(leaf, 0) if leaf <= largest[leaf & 0x80000000] else (0, 0, 0, 0)
        for leaf in (_FEATURES, _MORE_FEATURES, _EXTENDED)
    }
    return tuple(
        name
        for name, (leaf, register, bit, saved) in _X86_INSTRUCTION_SETS.items()
        if answers[leaf][register] >> bit & 1 and cpu.xcr0 & saved == saved
    )


if __name__ == "__main__":
    sys.stdout.write(json.dumps(dataclasses.asdict(detect_cpu())) + "\n")
