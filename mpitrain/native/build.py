"""Build the C++ program once for each set of sources and tools, and cache it."""

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
    """Return the program's path; build it first if it is not cached for these sources and tools.

    `say` receives one line for each stage. Raises MissingDependencyError with the compiler's first error message,
    OutputError if the cache cannot be written.
    """
    program = program_path(toolchain)
    folder = program.parent
    if is_trusted_program(program):
        return program
    say(f"building the C++ program in {folder} (about a minute, once)")
    building = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    try:
        tools = [f"-DMPI_CXX_COMPILER={toolchain.mpi_compiler}", f"-DMPITRAIN_PYTHON={toolchain.python}"]
        # Explicit instruction flags: -march=native would mean the CPU of the compiling host, not that of the program.
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
        folder.chmod(0o755)  # independent of the umask: not writable by a group
        (building / PROGRAM).chmod(0o755)
        (building / PROGRAM).replace(program)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return program


def program_path(toolchain: Toolchain) -> Path:
    """Return the path of the program for these sources and tools, whether it is built or not."""
    return code_folder() / f"cpp_reference-{_fingerprint(toolchain)}" / PROGRAM


def _fingerprint(toolchain: Toolchain) -> str:
    digest = hashlib.sha256(toolchain.identity().encode())
    for path in sorted(toolchain.sources.iterdir()):
        if path.suffix in (".cpp", ".hpp", ".txt", ".json"):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _run(command: Sequence[str], stage: str, scratch: Path) -> None:
    # LC_ALL: error messages are found by their English text. TMPDIR: an interrupted compiler leaves files there.
    environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(scratch.absolute())}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode == 0:
        return
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
    # "CMake Error" has its text on the next line; compilers print "error:". File names with "error" do not match.
    messages = [" ".join(lines[i : i + 2]) for i, line in enumerate(lines) if line.startswith("CMake Error")]
    messages += [line for line in lines if re.search(r"\berror:|undefined reference", line)] or lines[-1:]
    raise MissingDependencyError(
        f"{stage} the C++ program failed: {messages[0] if messages else 'no output'}; the command "
        f"was: {' '.join(command)}"
    )
