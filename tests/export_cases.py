"""What the tests of exported sources share: networks as emulators, compilers, and programs that call the sources."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from conftest import TIMEOUT_S, need_program
from networks import network_settings

from mpitrain.export.source.c import c_files, cpp_files
from mpitrain.export.source.emulator import Emulator, Variable, make_emulator
from mpitrain.export.source.fortran import fortran_files
from mpitrain.inference.portable.network import PortableNetwork, portable_network_of
from mpitrain.models.build import build_model

NAMES = ("Tair", "Tsfc", "sst", "sss", "hs", "hi", "sice")
MEAN = np.array([-25.0, -20.0, -1.2, 31.3, 0.4, 1.6, 4.0])
UNITS = ("C", "C", "C", "ppt", "m", "m", "ppt")
STD = np.array([6.5, 5.3, 1.3, 0.7, 0.2, 0.7, 1.0])
WRITERS = {"c": c_files, "c++": cpp_files, "fortran": fortran_files}
ENDINGS = {"c": ".c", "c++": ".cpp", "fortran": ".f90"}
FLANG = next(
    filter(
        shutil.which,
        ("flang", "flang-new", *(f"{name}-{one}" for one in range(40, 18, -1) for name in ("flang", "flang-new"))),
    ),
    "flang",
)
# Its self-test needs IEEE's exceptions, which these lack; they compile the module, and all else of a model.
OLDER_FLANG = next(filter(shutil.which, (f"flang-new-{number}" for number in (18, 17, 16))), "flang-new-16")
# Debian's link in /usr/bin does not find its own runtime.
OF_OLDER_FLANG = f"-L{Path(shutil.which(OLDER_FLANG) or '/bin/none').resolve().parents[1] / 'lib'}"
COMPILERS = {"gcc": "c", "clang": "c", "g++": "c++", "clang++": "c++", "gfortran": "fortran", FLANG: "fortran"}
# The standard, and all warnings as errors; Fortran's compilers are told not to fuse, and flang knows one standard only.
_STRICT = {
    "c": ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"),
    "c++": ("-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror"),
    "fortran": ("-std=f2008", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"),
    FLANG: ("-std=f2018", "-pedantic", "-Werror", "-ffp-contract=off"),
}

_C_DRIVER = """
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    const size_t n = (size_t)atol(argv[argc - 1]);
    REAL *x = (REAL *)malloc(n * F * sizeof(REAL)), *y = (REAL *)malloc(n * O * sizeof(REAL));
    REAL *one = (REAL *)malloc(n * O * sizeof(REAL)), *j = (REAL *)malloc(n * O * F * sizeof(REAL));
    FILE *in = fopen("x.bin", "rb"), *out = fopen("answers.bin", "wb");
    if (fread(x, sizeof(REAL), n * F, in) != n * F) return 1;
    CALL(jacobian_batch)(n, ROWS, x, y, j SPREAD);
    for (size_t s = 0; s < n; ++s) CALL(forward)(x + s * F, one + s * O, SPREAD_FIRST NULL);
    fwrite(y, sizeof(REAL), n * O, out);
    fwrite(one, sizeof(REAL), n * O, out);
    fwrite(j, sizeof(REAL), n * O * F, out);
    return fclose(out);
}
"""
_FORTRAN_DRIVER = """
program driver
  use emulator
  implicit none
  real(wp), allocatable :: x(:, :), y(:, :), one(:, :), j(:, :, :)
  integer :: n, s, file
  character(len=20) :: word
  call get_command_argument(1, word)
  read (word, *) n
  allocate (x(num_inputs, n), y(num_outputs, n), one(num_outputs, n), j(num_inputs, num_outputs, n))
  open (newunit=file, file='x.bin', access='stream', form='unformatted', status='old', action='read')
  read (file) x
  close (file)
  call jacobian(inputs_first, x, y, j)
  do s = 1, n
    call forward(x(:, s), one(:, s))
  end do
  open (newunit=file, file='answers.bin', access='stream', form='unformatted', status='replace', action='write')
  write (file) y, one, j
  close (file)
end program driver
"""


def networks(
    num_members: int = 1,
    num_outputs: int = 1,
    num_inputs: int = 7,
    dtype: torch.dtype = torch.float32,
    **settings: Any,
) -> list[PortableNetwork]:
    """Networks with drawn weights and the statistics of sea ice."""
    found = []
    for seed in range(num_members):
        settings_of_network = network_settings(**settings)
        model: Any = build_model(settings_of_network, num_inputs, num_outputs, seed=seed, dtype=dtype).eval()
        outputs = torch.linspace(1, 2, num_outputs)
        for norm in (module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)):
            for parameter in norm.parameters():  # which begin with ones and zeros
                parameter.data += torch.linspace(-0.4, 0.3 + seed, len(parameter))
        mean, std = (torch.from_numpy(np.resize(one, num_inputs)) for one in (MEAN, STD))
        model.set_normalization(mean, std, outputs, 3 * outputs)
        network = portable_network_of(model)
        assert network is not None
        found.append(network)
    return found


def samples(count: int, dtype: str, seed: int = 0, num_inputs: int = 7) -> np.ndarray:
    """Inputs (count, num_inputs) of the kind that the networks were trained on, some far out."""
    spread = np.random.default_rng(seed).standard_t(4, size=(count, num_inputs))
    return (np.resize(MEAN, num_inputs) + np.resize(STD, num_inputs) * spread).astype(dtype)


def emulator_of(found: list[PortableNetwork], name: str = "emulator", units: Sequence[str] = UNITS) -> Emulator:
    """The networks with names, units and samples, one of which is outside the range that is known."""
    num_inputs = found[0].sizes[0]
    inputs = samples(24, found[0].dtype, num_inputs=num_inputs)
    names = [*NAMES, *(f"x{number}" for number in range(len(NAMES), num_inputs))]
    units, mean, std = (np.resize(one, num_inputs) for one in (units, MEAN, STD))
    known = inputs[np.argsort(inputs[:, 0])[:-1]]
    variables = [
        Variable(one, str(unit), float(low), float(high), float(mean), float(std))
        for one, unit, low, high, mean, std in zip(names, units, known.min(0), known.max(0), mean, std, strict=True)
    ]
    outputs = [Variable(f"aice{number}", "1", 0, 1, 0.5, 0.3) for number in range(found[0].sizes[-1])]
    return make_emulator(name, found, variables, outputs, ["drawn weights"], inputs)


def write_sources(emulator: Emulator, language: str, folder: Path) -> list[str]:
    """Write the sources into a new folder; return the names of those to compile, the self-test last."""
    folder.mkdir(parents=True, exist_ok=True)
    files = WRITERS[language](emulator)
    for name, text in files.items():
        (folder / name).write_text(text)
    return [name for name in files if name.endswith(ENDINGS[language])]


def run_in(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder."""
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)


def compiled(compiler: str, folder: Path, sources: list[str], *flags: str, program: str = "program") -> None:
    """Compile with no warning allowed; a `program` that ends in .o is an object file."""
    need_program(compiler)
    strict = _STRICT.get(compiler, _STRICT[COMPILERS[compiler]])
    kind = ["-c"] if program.endswith(".o") else ["-lm"]
    done = run_in(folder, compiler, *strict, *flags, *sources, "-o", program, *kind)
    assert done.returncode == 0, f"{compiler} {flags}\n{done.stderr[:3000]}"


def write_driver(emulator: Emulator, language: str, folder: Path) -> str:
    """Write the program that answers to the samples in x.bin; return its name."""
    path = folder / f"driver{ENDINGS[language]}"
    if language == "fortran":
        path.write_text(_FORTRAN_DRIVER)
        return path.name
    is_c = language == "c"
    real = "float" if emulator.network.dtype == "float32" else "double"
    words = {
        "SPREAD_FIRST ": "NULL, " if emulator.is_ensemble else "",
        " SPREAD": ", NULL" if emulator.is_ensemble else "",
        "REAL": real, "CALL(jacobian_batch)": "emulator_jacobian_batch" if is_c else "emulator::jacobian_batch",
        "CALL(forward)": "emulator_forward" if is_c else "emulator::forward",
        "ROWS": "EMULATOR_ROW_MAJOR" if is_c else "emulator::layout::row_major",
        "n * F": "n * 7", "s * F": "s * 7", "O * F": "O * 7", " * O": f" * {len(emulator.outputs)}",
    }  # fmt: skip
    text = _C_DRIVER
    for word, replaced in words.items():
        text = text.replace(word, replaced)
    path.write_text(f'#include "emulator.{"h" if is_c else "hpp"}"\n{text}')
    return path.name


def answers(emulator: Emulator, folder: Path, count: int) -> list[bytes]:
    """What the driver wrote: outputs of batches, of single samples, and derivatives."""
    done = run_in(folder, str(folder / "driver"), str(count))
    assert done.returncode == 0, done.stderr
    values = np.fromfile(folder / "answers.bin", emulator.network.dtype)
    outputs = count * len(emulator.outputs)
    return [part.tobytes() for part in np.split(values, [outputs, 2 * outputs])]
