"""The compiler's flags for a CPU: `native` spelt out, from what the CPU itself says.

A compiler that is told -march=native looks for itself, and sees the host where this process is emulated, or the login
node where the program is to run on another one.
"""

from __future__ import annotations

import platform

from mpitrain.cluster.cpu.identity import CpuIdentity

# Which model's timings the compiler plans with: this adds no instruction, so the compiler may look for itself.
_TUNED_HERE = "-mtune=native"


def instruction_flags(cpu: CpuIdentity) -> tuple[str, ...]:
    """Return flags that let a compiler use all instruction sets of `cpu` that matter to arithmetic."""
    if cpu.instruction_sets is None:
        return ("-march=native",)  # nothing is known but that the compiler runs on this node
    if cpu.architecture == "aarch64":
        extensions = [name for name in ("lse", "sve") if name in cpu.instruction_sets]
        return ("+".join(["-march=armv8-a", *extensions]), _TUNED_HERE)
    return ("-march=x86-64", *(f"-m{name}" for name in cpu.instruction_sets), _TUNED_HERE)


def build_identity(cpu: CpuIdentity) -> str:
    """Return a text that differs between any two CPUs for which `instruction_flags` build different programs."""
    node = platform.node() if cpu.instruction_sets is None else ""
    return "\n".join([*instruction_flags(cpu), cpu.name, node])
