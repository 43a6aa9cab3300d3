"""A run with one fault: what goes wrong, on which rank, in which phase, and at which passing of that phase.

`python faulty_run.py KIND PHASE RANK PASSING NOTES ARGUMENTS...` runs the public command with it, as one of the ranks.
The file NOTES gets a line `fault TIME` just before the fault, and `saved STEP` after each save that has returned.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRAIN, TRAINER, STORE = "mpitrain.runs.train_run", "mpitrain.train.trainer.Trainer", "mpitrain.train.checkpoint.store"
# Where the phases begin: what is called then, and how often a run comes there.
PHASES = {
    "opening the data": (f"{TRAIN}.open_source_on_root", 1),
    "preparing": (f"{TRAIN}.prepare", 1),
    "making the folder": (f"{TRAIN}.open_folder", 1),
    "beginning to train": (f"{TRAINER}.fit", 1),
    "a step": (f"{TRAINER}._steps_at_once", 24),
    "validation": (f"{TRAINER}._finish_epoch", 12),
    "a save": (f"{TRAINER}.save_checkpoint", 12),
    "writing a checkpoint": (f"{STORE}.write_and_sync", 24),
    "committing a checkpoint": (f"{STORE}.write_durably", 12),
    "removing old checkpoints": (f"{STORE}.CheckpointStore._prune", 9),
    "finishing": ("mpitrain.runs.finish.finish_run", 1),
    "writing the model": ("mpitrain.runs.finish.save_trained", 1),
    "writing the report": ("mpitrain.runs.saved_model.write_page", 1),
    "predicting": (f"{TRAIN}.predict_finally", 1),
    "the last meeting": ("mpitrain.comm.start._close", 1),
}
# What only the first rank does.
OF_ROOT = (
    "writing a checkpoint", "committing a checkpoint", "removing old checkpoints", "writing the model",
    "writing the report",
)  # fmt: skip
SPEAKING = ("bug", "no memory", "our error", "sys.exit(0)", "sys.exit(3)", "interrupt")
VANISHING = ("os._exit(0)", "os._exit(3)", "SIGKILL", "SIGSEGV", "SIGBUS", "SIGABRT")
STAYING = ("SIGSTOP", "hang", "hang with lock")
ASKING = ("SIGTERM", "SIGUSR1")


def happen(kind: str) -> None:
    """Do what the faulty rank does."""
    if kind == "bug":
        raise ZeroDivisionError("injected")
    if kind == "no memory":
        raise MemoryError("injected")
    if kind == "our error":
        from mpitrain.errors import DataError

        raise DataError("injected")
    if kind == "interrupt":
        raise KeyboardInterrupt
    if kind.startswith("sys.exit"):
        sys.exit(int(kind[9]))
    if kind.startswith("os._exit"):
        os._exit(int(kind[9]))
    while kind == "hang":
        time.sleep(1)
    if kind == "hang with lock":
        ctypes.PyDLL(None).sleep(3600)
    os.kill(os.getpid(), getattr(signal, kind))


def inject(kind: str, phase: str, rank: int, passing: int, notes: Path) -> None:
    """Prepare the fault in this process, which is rank `rank` if a launcher's variables say so."""
    own_rank = own_rank_of(os.environ)
    if own_rank == 0:
        _note_saves(notes)
    if phase == "a step":  # each by itself, on all ranks alike, else an epoch's are one call
        _replace(PHASES[phase][0], lambda real: lambda trainer: min(1, real(trainer)))
    if own_rank != rank:
        return
    passings = 0

    def before() -> None:
        nonlocal passings
        passings += 1
        if passings == passing + 1:
            _append(notes, f"fault {time.time()}")
            happen(kind)

    _replace(PHASES[phase][0], lambda real: lambda *given, **named: (before(), real(*given, **named))[1])


def own_rank_of(environ: Any) -> int:
    names = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "RANK")
    return int(next(environ[name] for name in names if name in environ))


def _note_saves(notes: Path) -> None:
    def noting(real: Callable[..., Any]) -> Callable[..., Any]:
        def save(trainer: Any) -> None:
            real(trainer)
            _append(notes, f"saved {trainer.state.global_step}")

        return save

    _replace(f"{TRAINER}.save_checkpoint", noting)


def _append(notes: Path, line: str) -> None:
    with notes.open("a") as file:
        file.write(line + "\n")


def owner_of(where: str) -> tuple[Any, str]:
    """Return the module or class that has a function, and the function's name in it."""
    owner, _, name = where.rpartition(".")
    holder, _, class_name = owner.rpartition(".")
    target = getattr(importlib.import_module(holder), class_name) if class_name[0].isupper() else None
    return target or importlib.import_module(owner), name


def _replace(where: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    target, name = owner_of(where)
    setattr(target, name, make(getattr(target, name)))


def draw_nothing() -> None:
    """Leave the pictures out of the report: drawing takes longer than the training."""
    from mpitrain.inference.page import findings
    from mpitrain.observe import report

    report._draw_plots = lambda *_: {}
    findings.draw_error_map = findings.course_of = lambda *_: None


def main(words: list[str]) -> int:
    """Run the command with the fault that the first five words tell."""
    kind, phase, rank, passing, notes = words[:5]
    inject(kind, phase, int(rank), int(passing), Path(notes))
    from mpitrain.cli.main import main as command

    draw_nothing()
    sys.argv[1:] = words[5:]
    return command()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
