"""The files of settings, and the compiler's flags, that the checks of collecting need."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import PROJECT, need_program

EXAMPLE = PROJECT / "jobs" / "collection"
VARIABLES = """inputs:
  - name: a
    units: K
  - {name: b, units: "m s-1", long_name: 'one, of two'}
targets:
  - name: c   # without a unit
"""


def settings(name: str, samples: int, strata: str = "") -> str:
    return f"output: {name}\nsamples: {samples}\nseed: 3\n{VARIABLES}{strata}"


def write_settings(folder: Path) -> None:
    shutil.copy(EXAMPLE / "collect.yaml", folder)
    texts = {
        "bins": settings(str(folder / "unused.nc"), 60, "strata:\n  variable: b\n  edges: [-2.5, 2.5]\n"),
        "regions": settings(str(folder / "unused.nc"), 60, "strata:\n  regions: 3\n"),
        "all": settings(str(folder / "all.nc"), 150000),
        "few": settings(str(folder / "few.nc"), 200),
        "wrong": settings("x.nc", 60).replace("units: K", "unit: K"),
        "too_large": settings("x.nc", 2**31 - 1).replace("name: c", "name: c\n    levels: 100000\n"),
    }
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text)


def netcdf_flags(*kinds: str) -> list[str]:
    """Return what pkg-config says of netCDF's C library; skips the test where there is none."""
    done = subprocess.run([need_program("pkg-config"), *kinds, "netcdf"], check=False, text=True, capture_output=True)
    if done.returncode != 0:
        pytest.skip("netCDF's C library is not found by pkg-config")
    return done.stdout.split()


def compiler_flags(folder: Path) -> list[str]:
    return [f"-I{folder}", f"-I{EXAMPLE}", *netcdf_flags("--cflags", "--libs"), "-lm"]
