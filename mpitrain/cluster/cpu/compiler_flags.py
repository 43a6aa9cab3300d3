"""Compiler flags for a CPU or a named instruction set, one per instruction set that the CPU reports.

With -march=native the compiler detects the CPU on which it runs itself: the host's if this process is emulated, or the
login node's if the program is to run on another node.
"""

from __future__ import annotations

import platform

from mpitrain.cluster.cpu.identity import CpuIdentity
from mpitrain.errors import ConfigError

# Tuning for the CPU model adds no instructions, so the compiler may detect the model.
_TUNED_HERE = "-mtune=native"

_V2 = ("sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cx16", "sahf")
_V3 = (*_V2, "movbe", "bmi", "bmi2", "lzcnt", "avx", "f16c", "fma", "avx2")
# The levels of the x86-64 psABI, and the baseline of aarch64.
_NAMED: dict[str, tuple[str, tuple[str, ...]]] = {
    "x86-64": ("x86_64", ()),
    "x86-64-v2": ("x86_64", _V2),
    "x86-64-v3": ("x86_64", _V3),
    "x86-64-v4": ("x86_64", (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")),
    "armv8-a": ("aarch64", ()),
}
INSTRUCTION_SETS = ("native", *_NAMED)
"""The allowed values of `compute.instruction_set`."""


def instruction_flags(cpu: CpuIdentity, instruction_set: str = "native") -> tuple[str, ...]:
    """Return compiler flags for `instruction_set`.

    Parameters
    ----------
    cpu : CpuIdentity
        The CPU on which the program is to run, for example `detect_cpu()`.
    instruction_set : str
        One of INSTRUCTION_SETS; "native" (default): all known instruction sets of `cpu`.

    Returns
    -------
    tuple of str
        `-march` with the architecture's baseline and, beyond it, the instruction sets by name; for "native" also
        `-mtune=native`, or `-march=native` alone if the instruction sets of `cpu` are unknown.

    Raises
    ------
    ConfigError
        `cpu` lacks a part of the named instruction set, or has another architecture. If its instruction sets are
        unknown, it is assumed to have all of them.
    """
    if instruction_set != "native":
        return _named_flags(cpu, instruction_set)
    if cpu.instruction_sets is None:
        return ("-march=native",)  # the CPU is unknown, but the compiler runs on this node
    if cpu.architecture == "aarch64":
        extensions = [name for name in ("lse", "sve") if name in cpu.instruction_sets]
        return ("+".join(["-march=armv8-a", *extensions]), _TUNED_HERE)
    return ("-march=x86-64", *(f"-m{name}" for name in cpu.instruction_sets), _TUNED_HERE)


def _named_flags(cpu: CpuIdentity, instruction_set: str) -> tuple[str, ...]:
    architecture, needed = _NAMED[instruction_set]
    known = needed if cpu.instruction_sets is None else cpu.instruction_sets  # if unknown, assume that it has all
    missing = [name for name in needed if name not in known]
    if cpu.architecture != architecture or missing:
        problem = f"lacks {' '.join(missing)}" if cpu.architecture == architecture else f"is {cpu.architecture}"
        raise ConfigError(
            f"compute.instruction_set={instruction_set}: the CPU of {platform.node()}, {cpu.name}, {problem}; give one "
            "that all nodes of the run support, or native"
        )
    return (f"-march={'x86-64' if architecture == 'x86_64' else 'armv8-a'}", *(f"-m{name}" for name in needed))


def build_identity(cpu: CpuIdentity, instruction_set: str = "native") -> str:
    """Return a text that differs for any two CPUs for which `instruction_flags` leads to different programs."""
    flags = instruction_flags(cpu, instruction_set)
    if instruction_set != "native":
        return "\n".join(flags)
    node = platform.node() if cpu.instruction_sets is None else ""
    return "\n".join([*flags, cpu.name, node])


def fuses_products(cpu: CpuIdentity, instruction_set: str = "native") -> bool:
    """Return whether programs built with these flags use fused multiply-add, which rounds once."""
    flags = instruction_flags(cpu, instruction_set)
    return cpu.architecture != "x86_64" or not {"-mfma", "-mavx512f", "-march=native"}.isdisjoint(flags)
