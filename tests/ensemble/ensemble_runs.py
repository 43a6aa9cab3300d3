"""Runs of the command `mpitrain ensemble`."""

from __future__ import annotations

from pathlib import Path

from conftest import Finished, launch

SMALL = ["model.name=mlp", "model.hidden_size=8"]


def ensemble(num_ranks: int | None, folder: Path, *words: str, **options: object) -> Finished:
    return launch(["-m", "mpitrain", "ensemble", f"output.model_dir={folder}", *words], num_ranks, **options)  # type: ignore[arg-type]
