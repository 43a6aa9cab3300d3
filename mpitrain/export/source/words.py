"""The comment at the top of a source, in every language: the network, its variables, and how to compile it."""

from __future__ import annotations

from collections.abc import Sequence

from mpitrain.export.source.emulator import Emulator, Variable
from mpitrain.text_table import aligned
from mpitrain.version import __version__

_HEADINGS = ("", "name", "units", "minimum", "maximum", "mean", "standard deviation")
# Without this flag gfortran and flang fuse products and sums; no directive in the source can prevent it.
FORTRAN_FLAG = "-ffp-contract=off"
# gfortran's flags for speed: without -fno-trapping-math it does not vectorise activations on a CPU without AVX-512;
# without -fschedule-insns it finishes each activation before it starts the next. C and C++ sources set both themselves.
_FAST_FLAGS = "-O3 -march=native -fno-trapping-math -fschedule-insns"
_WIDE_FLAG = "-mprefer-vector-width=512"


def describe(emulator: Emulator, index: str = "[{}]", first: int = 0) -> list[str]:
    """Return the network's origin, its shape, and a table of its variables, numbered from `first`."""
    network = emulator.network
    sizes = "-".join(map(str, network.sizes))
    activations = ", ".join(layer.activation for layer in network.layers)
    members = (
        f"{len(emulator.networks)} networks, for which mean and spread are returned; each "
        if (emulator.is_ensemble)
        else ""
    )
    return [
        f"{emulator.name}: {members}{sizes} in {network.dtype}, activations {activations}. Written by mpitrain "
        f"{__version__}.",
        *emulator.origin,
        "",
        "Inputs x and outputs y are in the units of the training data, which has these statistics:",
        *_table("x" + index, emulator.inputs, first),
        *_table("y" + index, emulator.outputs, first),
    ]  # fmt: skip


def usage(emulator: Emulator, language: str) -> list[str]:
    """Return what the functions guarantee, and how to compile the source."""
    name = emulator.name
    commands = {
        "c": f"cc -std=c99 -O3 -march=native {name}.c {name}_test.c -lm && ./a.out",
        "c++": f"c++ -std=c++17 -O3 -march=native {name}_test.cpp && ./a.out",
        "fortran": f"gfortran -std=f2008 {_FAST_FLAGS} {FORTRAN_FLAG} {name}.f90 {name}_test.f90 && ./a.out",
    }
    fused = {
        "fortran": f"{FORTRAN_FLAG} (gfortran, flang; other compilers have a similar flag) prevents fused products and "
        f"sums, which would change the last bits; check_arithmetic() detects them. gfortran's batches are 2.5 times as "
        f"fast with -fno-trapping-math on CPUs without AVX-512, faster with {_WIDE_FLAG} on CPUs with AVX-512, and a "
        f"tenth faster with -fschedule-insns.",
    }.get(language, "This needs no flag, but -ffast-math and -Ofast are refused.")
    return [
        "The functions return the same bits as mpitrain predict, at every level of optimisation, on any CPU, with any "
        f"number of threads; they keep no state and allocate nothing. {fused}",
        f"Self-test: {commands[language]}",
        *_recipes(name, language),
    ]


def _recipes(name: str, language: str) -> list[str]:
    """Return the lines by which a model's build adds flags for this file alone, after the model's flags."""
    file, variable, flags = {
        "c": (f"{name}.c", "CFLAGS", "-O3 -fno-fast-math"),
        "c++": ("caller.cpp", "CXXFLAGS", "-O3 -fno-fast-math"),
        "fortran": (f"{name}.f90", "FFLAGS", f"-O3 -fno-fast-math -fno-trapping-math {FORTRAN_FLAG}"),
    }[language]
    # flang ignores -ffp-contract=off, and any flag that would restore it, once it has read -Ofast or -ffast-math.
    of_flang = [f"  flang: {name}.o: FFLAGS := $(filter-out -Ofast -ffast-math,$(FFLAGS)) -O3 {FORTRAN_FLAG}"]
    included = f" (caller.cpp includes {name}.hpp)" if language == "c++" else ""
    return [
        f"In a build with other flags (-Ofast, -ffast-math), add for this file alone{included}:",
        f"  make:  {file.rsplit('.', 1)[0]}.o: {variable} += {flags}",
        *(of_flang if language == "fortran" else []),
        f'  CMake: set_source_files_properties({file} PROPERTIES COMPILE_OPTIONS "{flags.replace(" ", ";")}")',
    ]


def _table(place: str, variables: Sequence[Variable], first: int) -> list[str]:
    rows = [
        (place.format(number), one.name, one.units or "?",
         *(f"{getattr(one, key):.6g}" for key in ("minimum", "maximum", "mean", "std")))
        for number, one in enumerate(variables, first)
    ]  # fmt: skip
    return aligned([_HEADINGS, *rows], num_left=3)
