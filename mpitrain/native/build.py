"""Build the C++ program once for each set of sources and tools, and keep it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from mpitrain.cache import code_folder, is_trusted_program
from mpitrain.cluster import instruction_flags
from mpitrain.errors import MissingDependencyError, writing
from mpitrain.native.toolchain import Toolchain

PROGRAM = "mpitrain_reference"
Say = Callable[[str], None]


def build_program(toolchain: Toolchain, say: Say) -> Path:
    """Return the program's path, building it first if these sources and tools have not been built before.

    `say` hears one line a stage. Raises MissingDependencyError with the compiler's first complaint,
    OutputError where the cache cannot be written.
    """
    program = program_path(toolchain)
    folder = program.parent
    if is_trusted_program(program):
        return program
    say(f"building the C++ program in {folder} (about a minute, once)")
    building = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    try:
        tools = [f"-DMPI_CXX_COMPILER={toolchain.mpi_compiler}", f"-DMPITRAIN_PYTHON={toolchain.python}"]
        # A compiler that is told -march=native looks at the CPU that it runs on, which need not be the program's.
        tools.append(f"-DMPITRAIN_INSTRUCTION_FLAGS={';'.join(instruction_flags(toolchain.cpu))}")
        folders = ["-S", str(toolchain.sources), "-B", str(building)]
        with writing(building, "set MPITRAIN_CACHE to a folder that can be written"):
            building.mkdir(parents=True, exist_ok=True)
        _run([toolchain.cmake, *folders, "-DBUILD_TESTING=OFF", *tools], "configuring", building)
        say("configured; compiling")
        _run(
            [toolchain.cmake, "--build", str(building), "--parallel", str(os.cpu_count() or 1), "--target", PROGRAM],
            "compiling",
            building,
        )
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)  # whatever the umask: not for a group to write
        (building / PROGRAM).chmod(0o755)
        (building / PROGRAM).replace(program)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return program


def program_path(toolchain: Toolchain) -> Path:
    """Return where the program of these sources and tools lies once it is built."""
    return code_folder() / f"cpp_reference-{_fingerprint(toolchain)}" / PROGRAM


def _fingerprint(toolchain: Toolchain) -> str:
    digest = hashlib.sha256(toolchain.identity().encode())
    for path in sorted(toolchain.sources.iterdir()):
        if path.suffix in (".cpp", ".hpp", ".txt", ".json"):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _run(command: Sequence[str], what: str, scratch: Path) -> None:
    # Complaints are found by their English words; a compiler leaves its files where it is interrupted.
    environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(scratch.absolute())}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode == 0:
        return
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
    # "CMake Error" with its text on the next line, "error:" of compilers; not every file whose name has the word in it.
    complaints = [" ".join(lines[i : i + 2]) for i, line in enumerate(lines) if line.startswith("CMake Error")]
    complaints += [line for line in lines if re.search(r"\berror:|undefined reference", line)] or lines[-1:]
    raise MissingDependencyError(
        f"{what} the C++ program failed: {complaints[0] if complaints else 'no output'}; the command "
        f"was: {' '.join(command)}"
    )
