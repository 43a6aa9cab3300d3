"""Faults of one rank before the ranks have met, as a table: kinds x phases x launchers, with what each must end in.

As a module: `cells()` and `run_cell`. As a script, in the place of `python -m mpitrain`:
`python start_faults.py KIND PHASE RANK ARGUMENTS...` runs the public command with the fault on that rank.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FAULTY_RANK, NUM_RANKS = 1, 2
PORTS_OF_NO_CONNECTION = (15000, 32000)  # Linux gives those from 32768 on
KINDS = ("SIGKILL", "SIGSTOP", "hang", "hang with lock", "exception", "sys.exit(0)", "sys.exit(3)", "os._exit(0)")
PHASES = ("before", "import torch", "import mpi4py", "MPI_Init", "meeting", "settings", "transport")
LAUNCHERS = ("mpirun", "by hand", "torchrun")
# How each kind shows: the rank that stays is named after the limit, the others at once.
STAYS = ("SIGSTOP", "hang", "hang with lock")


@dataclass(frozen=True)
class Cell:
    """One fault: its kind, the phase in which it comes, and what started the ranks."""

    kind: str
    phase: str
    launcher: str

    @property
    def stays(self) -> bool:
        """Whether the rank's process lives on."""
        return self.kind in STAYS

    @property
    def is_known_to_nobody(self) -> bool:
        """Whether the process stays and no program knows of it: started by hand, it has run no line of the package."""
        return self.stays and self.phase == "before" and self.launcher == "by hand"


@dataclass(frozen=True)
class Ended:
    """What became of a launch: exit codes (the launcher's, or each rank's) and all error output."""

    codes: list[int]
    stderr: str

    @property
    def our_lines(self) -> list[str]:
        return [line for line in re.split(r"[\r\n]", self.stderr) if line.startswith("mpitrain: ")]


def cells(launchers: Sequence[str] = LAUNCHERS) -> list[Cell]:
    """Every cell of the table that there is: no fault in MPI_Init where MPI only says that this process is alone."""
    return [Cell(*parts) for parts in itertools.product(KINDS, PHASES, launchers)]


def command_of(cell: Cell, arguments: Sequence[str], python: str, mpirun: str) -> list[str]:
    """The command that starts all ranks; by hand, that of each rank."""
    words = [str(Path(__file__)), cell.kind, cell.phase, str(FAULTY_RANK), *arguments]
    if cell.launcher == "by hand":
        return [python, *words]
    if cell.launcher == "torchrun":
        torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(NUM_RANKS), "--monitor-interval", "0.2"]
        return [python, *torchrun, "--master-addr", "127.0.0.1", "--master-port", str(free_port()), *words]
    return [mpirun, "-np", str(NUM_RANKS), python, *words]


def run_cell(
    cell: Cell, arguments: Sequence[str], environ: dict[str, str], python: str, mpirun: str, limit_s: float
) -> Ended:
    """Run a cell to its end. Raises subprocess.TimeoutExpired where that does not come."""
    from conftest import TIMEOUT_S  # not where this file is a rank's program

    environ = {**environ, "MPITRAIN_START_TIMEOUT_S": f"{limit_s:g}"}
    environs = [environ]
    if cell.launcher == "by hand":
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(NUM_RANKS)}
        environs = [{**environ, **meeting, "RANK": str(rank)} for rank in range(NUM_RANKS)]
    command = command_of(cell, arguments, python, mpirun)
    running = [_start(command, environ) for environ in environs]
    try:
        texts = []
        for rank, process in enumerate(running):
            # By hand nobody but the package itself ends the ranks: the faulty one is waited for as well.
            if rank == FAULTY_RANK and cell.is_known_to_nobody:
                os.killpg(process.pid, signal.SIGKILL)
            texts.append(process.communicate(timeout=TIMEOUT_S)[1])
    finally:
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return Ended([process.returncode for process in running], "".join(texts))


def _start(command: Sequence[str], environ: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def free_port() -> int:
    """Return a port that is free, and that the system gives to no connection before it is used."""
    while True:
        port = random.SystemRandom().randrange(*PORTS_OF_NO_CONNECTION)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def expected_words(cell: Cell) -> str:
    """A pattern that our one line must match: the faulty rank is named, wherever it can be known."""
    host = re.escape(socket.gethostname())
    rank = rf"rank {FAULTY_RANK} on {host}"
    if cell.phase == "before":  # it never told of itself
        return rf"the ranks did not connect within \d+ s: no sign of rank {FAULTY_RANK} of {NUM_RANKS} on {host}"
    if cell.stays and cell.kind != "SIGSTOP" and cell.phase in ("MPI_Init", "meeting") and cell.launcher == "mpirun":
        return rf"the ranks did not connect within \d+ s: all {NUM_RANKS} ranks are at"  # nothing tells them apart
    if cell.stays:
        return rf"the ranks did not connect within \d+ s: {rank} \(process \d+(, stopped)?\) is still "
    if cell.kind in ("SIGKILL", "os._exit(0)"):
        return rf"{rank} \(process \d+\) exited without an error message"
    if cell.kind == "exception":
        return rf"{rank}( could not start)?: (ImportError|ZeroDivisionError): injected"
    return rf"{rank}: SystemExit: \d"


def expected_code(cell: Cell, code_of_faulty: int) -> int:
    """The exit code of the other ranks: a wrong launch, but for a bug once the ranks have met, which all report."""
    return 1 if code_of_faulty == 1 and cell.phase in ("settings", "transport") else 3


def is_named_by_launcher(cell: Cell) -> bool:
    """Whether the launcher itself ends all, before anybody knows of a rank that never told of itself."""
    is_early = cell.phase == "before" or (cell.phase == "import torch" and cell.kind in ("SIGKILL", "os._exit(0)"))
    return is_early and not cell.stays and cell.launcher != "by hand"


def _injected(kind: str, error: type[Exception] = ZeroDivisionError) -> None:
    """Do what the faulty rank does."""
    if kind == "exception":
        raise error("injected")
    if kind.startswith("sys.exit"):
        sys.exit(int(kind[9]))
    if kind == "os._exit(0)":
        os._exit(0)
    if kind == "hang":
        time.sleep(3600)
    if kind == "hang with lock":
        import ctypes

        ctypes.PyDLL(None).sleep(3600)
    os.kill(os.getpid(), getattr(signal, kind))


class _FaultyImport:
    """A finder that has the fault when a module is looked for."""

    def __init__(self, kind: str, module: str) -> None:
        self.kind, self.module = kind, module

    def find_spec(self, name: str, *_: Any) -> None:
        if name == self.module:
            _injected(self.kind, ImportError)


def _inject(kind: str, phase: str) -> None:
    """Prepare the fault in this process."""
    if phase == "before":
        _injected(kind, ImportError)
    elif phase.startswith("import "):
        sys.meta_path.insert(0, _FaultyImport(kind, phase.split()[1]))  # type: ignore[arg-type]
    elif phase == "MPI_Init":
        import mpi4py

        mpi4py.rc.initialize = False
        from mpi4py import MPI

        _replace(MPI, "Init_thread", kind)
    else:
        from mpitrain.comm import start, tensors
        from mpitrain.runs import train_run

        places: dict[str, tuple[Any, str]] = {
            "meeting": (start, "_decide_together"),
            "settings": (train_run, "load_settings"),
            "transport": (tensors, "_start_group"),
        }
        _replace(*places[phase], kind)


def _replace(module: Any, name: str, kind: str) -> None:
    real = getattr(module, name)

    def faulty(*arguments: Any) -> Any:
        _injected(kind)
        return real(*arguments)

    setattr(module, name, faulty)


def _rank() -> Iterator[str]:
    return (
        os.environ[name] for name in ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "RANK") if name in os.environ
    )


if __name__ == "__main__":
    if int(next(_rank())) == int(sys.argv[3]):
        _inject(*sys.argv[1:3])
    from mpitrain.cli.main import main

    sys.exit(main(sys.argv[4:]))
