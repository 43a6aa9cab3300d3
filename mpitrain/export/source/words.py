"""What a source says of itself in a comment, in every language: units, names, and how it is called and compiled."""

from __future__ import annotations

from collections.abc import Sequence

from mpitrain import __version__
from mpitrain.export.source.emulator import Emulator, Variable
from mpitrain.text_table import aligned

_HEADINGS = ("", "name", "units", "minimum", "maximum", "mean", "standard deviation")
# The flag without which gfortran and flang fuse products and sums: they have no word for this in the source.
FORTRAN_FLAG = "-ffp-contract=off"


def describe(emulator: Emulator) -> list[str]:
    """Return where the network comes from, its shape, and a table of its variables."""
    network = emulator.network
    sizes = "-".join(map(str, network.sizes))
    activations = ", ".join(layer.activation for layer in network.layers)
    members = (
        f"{len(emulator.networks)} networks, of which the mean and spread are given; each "
        if (emulator.is_ensemble)
        else ""
    )
    return [
        f"{emulator.name}: {members}{sizes} in {network.dtype}, activations {activations}. Written by mpitrain "
        f"{__version__}.",
        *emulator.origin,
        "",
        "Inputs x and outputs y are in the units of the training data, whose statistics these are:",
        *_table("x", emulator.inputs),
        *_table("y", emulator.outputs),
    ]  # fmt: skip


def usage(emulator: Emulator, language: str) -> list[str]:
    """Return how the source is compiled and what it promises."""
    name = emulator.name
    commands = {
        "c": f"cc -std=c99 -O3 -march=native {name}.c {name}_test.c -lm && ./a.out",
        "c++": f"c++ -std=c++17 -O3 -march=native {name}_test.cpp && ./a.out",
        "fortran": f"gfortran -std=f2008 -O3 -march=native {FORTRAN_FLAG} {name}.f90 {name}_test.f90 && ./a.out",
    }
    fused = {
        "fortran": f"{FORTRAN_FLAG} (gfortran, flang; others have the like) keeps a compiler from fusing products and "
        "sums, which would change the last bits; check_arithmetic() tells whether it did. gfortran's batches are "
        "faster with -mprefer-vector-width=512 on CPUs with AVX-512.",
    }.get(language, "No flag is needed for that, but -ffast-math and -Ofast are refused.")
    return [
        "The functions compute the bits of mpitrain predict, at every level of optimisation, on any CPU, with any "
        f"number of threads; they keep no state and allocate nothing. {fused}",
        f"Self-test: {commands[language]}",
    ]


def _table(letter: str, variables: Sequence[Variable]) -> list[str]:
    rows = [
        (f"{letter}[{number}]", one.name, one.units or "?",
         *(f"{getattr(one, key):.6g}" for key in ("minimum", "maximum", "mean", "std")))
        for number, one in enumerate(variables)
    ]  # fmt: skip
    return aligned([_HEADINGS, *rows], num_left=3)
