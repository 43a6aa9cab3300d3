"""Facts of each rank's machine that bits may depend on. Both programs write them into their traces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mpitrain.cluster import detect_cpu
from mpitrain.cluster.facts import vendor_settings
from mpitrain.comm.mpi.library import read_mpi_library
from mpitrain.verify.trace import Trace

_FACTS = ("cpu", "torch", "mpi_library", "vendor_settings")


@dataclass(frozen=True)
class SeenMachine:
    """A kind of machine that ranks of one program reported: CPU, torch with its instruction set, MPI, settings."""

    program: str
    ranks: tuple[int, ...]
    cpu: str
    torch: str
    mpi_library: str
    vendor_settings: str

    def __str__(self) -> str:
        ranks = f"rank{'s' if len(self.ranks) > 1 else ''} {','.join(map(str, self.ranks))}"
        settings = f"; {self.vendor_settings}" if self.vendor_settings else ""
        return f"{self.program}, {ranks}: {self.cpu}; torch {self.torch}; {self.mpi_library}{settings}"


def facts_of_this_rank(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the facts of this rank's machine, by the names of a trace's attributes."""
    import torch

    return {
        "cpu": str(detect_cpu()),
        "torch": f"{torch.__version__} ({torch.backends.cpu.get_cpu_capability()})",
        "mpi_library": read_mpi_library().version,
        "vendor_settings": vendor_settings(environ),
    }


def as_attributes(facts_of_ranks: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the attributes of a trace: one per fact, with a line for each rank."""
    of_ranks = list(facts_of_ranks)
    return {name: "".join(_first_line(facts[name]) + "\n" for facts in of_ranks) for name in _FACTS}


def machines_of(program: str, trace: Trace) -> tuple[SeenMachine, ...]:
    """Return the kinds of machines that the ranks of a trace reported."""
    lines = [[_first_line(line) for line in str(trace.attributes[name]).split("\n")[:-1]] for name in _FACTS]
    ranks: dict[tuple[str, ...], list[int]] = {}
    for rank, facts in enumerate(zip(*lines, strict=True)):
        ranks.setdefault(facts, []).append(rank)
    return tuple(SeenMachine(program, tuple(numbers), *facts) for facts, numbers in ranks.items())


def merged(machines: Iterable[SeenMachine]) -> tuple[SeenMachine, ...]:
    """Return each kind of machine once, with all ranks that reported it."""
    ranks: dict[SeenMachine, set[int]] = {}
    for seen in machines:
        ranks.setdefault(replace(seen, ranks=()), set()).update(seen.ranks)
    return tuple(replace(kind, ranks=tuple(sorted(seen))) for kind, seen in ranks.items())


def _first_line(text: str) -> str:
    # An MPI library's version is several lines; the first one names it.
    return " ".join(text.split("\n", 1)[0].split())
