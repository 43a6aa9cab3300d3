"""The machines that the proofs are tried on: this one, others that an emulator plays, and this one's older ways."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from mpitrain.cluster.cpu.identity import detect_cpu

QEMU = "qemu-x86_64"


@dataclass(frozen=True)
class Machine:
    """How ranks are started on it, and what they must then report of it.

    `maker`: the CPU's, as CPUID spells it. `torch_uses`: the instruction sets that torch's own kernels then take.
    """

    name: str
    maker: str
    torch_uses: str
    emulator: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def environ_of_launch(self) -> dict[str, str]:
        """The variables of a launch there; an emulated import of torch takes minutes on a busy host."""
        return {"MPITRAIN_START_TIMEOUT_S": "900", **self.environ}

    def skip_if_missing(self) -> None:
        """Skip the test, with the reason, where this machine is not at hand."""
        if os.uname().machine != "x86_64":
            pytest.skip(f"not run on {self.name}: the matrix is of x86-64 CPUs, this is {os.uname().machine}")
        if self.emulator and shutil.which(self.emulator[0]) is None:
            pytest.skip(f"not run on {self.name}: no {self.emulator[0]}; on Debian: apt-get install qemu-user")
        if self.environ and "avx2" not in instruction_sets_here():
            pytest.skip(f"not run on {self.name}: this CPU has no AVX2")


def instruction_sets_here() -> tuple[str, ...]:
    return detect_cpu().instruction_sets or ()


def what_torch_uses_here() -> str:
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= {*instruction_sets_here()}:
        return "AVX512"
    return "AVX2" if {"avx2", "fma"} <= {*instruction_sets_here()} else "DEFAULT"


def machines() -> dict[str, Machine]:
    """The matrix, by name."""
    maker = detect_cpu().vendor
    return {
        machine.name: machine
        for machine in (
            Machine("this machine", maker, what_torch_uses_here()),
            Machine("torch without vectors", maker, "DEFAULT", environ={"ATEN_CPU_CAPABILITY": "default"}),
            Machine("torch with AVX2", maker, "AVX2", environ={"ATEN_CPU_CAPABILITY": "avx2"}),
            Machine("Intel Haswell", "GenuineIntel", "AVX2", (QEMU, "-cpu", "Haswell")),
            Machine("AMD EPYC", "AuthenticAMD", "AVX2", (QEMU, "-cpu", "EPYC")),
        )
    }


MACHINES = machines()
EMULATED = [name for name, machine in MACHINES.items() if machine.emulator]
