"""The compiler's flags for a CPU or a named set of instructions, spelt out from what the CPU itself says.

A compiler that is told -march=native looks for itself, and sees the host where this process is emulated, or the login
node where the program is to run on another one.
"""

from __future__ import annotations

import platform

from mpitrain.cluster.cpu.identity import CpuIdentity
from mpitrain.errors import ConfigError

# Which model's timings the compiler plans with: this adds no instruction, so the compiler may look for itself.
_TUNED_HERE = "-mtune=native"

_V2 = ("sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cx16", "sahf")
_V3 = (*_V2, "movbe", "bmi", "bmi2", "lzcnt", "avx", "f16c", "fma", "avx2")
# The levels of the x86-64 psABI, and what each CPU of the other architecture has.
_NAMED: dict[str, tuple[str, tuple[str, ...]]] = {
    "x86-64": ("x86_64", ()),
    "x86-64-v2": ("x86_64", _V2),
    "x86-64-v3": ("x86_64", _V3),
    "x86-64-v4": ("x86_64", (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")),
    "armv8-a": ("aarch64", ()),
}
INSTRUCTION_SETS = ("native", *_NAMED)
"""What `compute.instruction_set` may be."""


def instruction_flags(cpu: CpuIdentity, instruction_set: str = "native") -> tuple[str, ...]:
    """Return flags that let a compiler use what `cpu` has of `instruction_set`: native is all that matters.

    Raises ConfigError where the CPU lacks a part of it.
    """
    if instruction_set != "native":
        return _named_flags(cpu, instruction_set)
    if cpu.instruction_sets is None:
        return ("-march=native",)  # nothing is known but that the compiler runs on this node
    if cpu.architecture == "aarch64":
        extensions = [name for name in ("lse", "sve") if name in cpu.instruction_sets]
        return ("+".join(["-march=armv8-a", *extensions]), _TUNED_HERE)
    return ("-march=x86-64", *(f"-m{name}" for name in cpu.instruction_sets), _TUNED_HERE)


def _named_flags(cpu: CpuIdentity, instruction_set: str) -> tuple[str, ...]:
    architecture, needed = _NAMED[instruction_set]
    known = needed if cpu.instruction_sets is None else cpu.instruction_sets  # who cannot be asked is believed
    missing = [name for name in needed if name not in known]
    if cpu.architecture != architecture or missing:
        lacks = f"lacks {' '.join(missing)}" if cpu.architecture == architecture else f"is of {cpu.architecture}"
        raise ConfigError(
            f"compute.instruction_set={instruction_set}: the CPU of {platform.node()}, {cpu.name}, {lacks}; give what "
            "all nodes of the run have, or native"
        )
    return (f"-march={'x86-64' if architecture == 'x86_64' else 'armv8-a'}", *(f"-m{name}" for name in needed))


def build_identity(cpu: CpuIdentity, instruction_set: str = "native") -> str:
    """Return a text that differs between any two CPUs for which `instruction_flags` build different programs."""
    flags = instruction_flags(cpu, instruction_set)
    if instruction_set != "native":
        return "\n".join(flags)
    node = platform.node() if cpu.instruction_sets is None else ""
    return "\n".join([*flags, cpu.name, node])


def fuses_products(cpu: CpuIdentity, instruction_set: str = "native") -> bool:
    """Whether programs built so multiply and add in one instruction, rounded once."""
    flags = instruction_flags(cpu, instruction_set)
    return cpu.architecture != "x86_64" or not {"-mfma", "-mavx512f", "-march=native"}.isdisjoint(flags)
