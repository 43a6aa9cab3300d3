"""A refused run takes back what it made, and nothing that anybody else has put there in the meantime."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpitrain.errors import DataError
from mpitrain.runs.beginning import files_removed_on_error


def write(path: Path) -> None:
    path.write_text("made here")


def refused(folder: Path, others: object = None) -> None:
    """A run that makes a folder and a file, and is refused after `others` have been there."""
    with pytest.raises(DataError), files_removed_on_error() as made:  # noqa: PT012
        made.make_folder(folder / "logs")
        made.write(folder / "cice_history.nc", write)
        if callable(others):
            others()
        raise DataError("refused")


def test_what_a_refused_run_made_is_gone(tmp_path: Path) -> None:
    refused(tmp_path / "above" / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_another_process_finished_there_stays_whole(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def others() -> None:
        (folder / "cice_history.nc").unlink()
        for name in ("config.yaml", "model.pt", "cice_history.nc", "logs/rank-0000.log"):
            (folder / name).write_text(f"theirs: {name}")

    refused(folder, others)
    left = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    assert left == {"config.yaml", "model.pt", "cice_history.nc", "logs", "logs/rank-0000.log"}
    assert (folder / "cice_history.nc").read_text() == "theirs: cice_history.nc"


def test_a_file_that_was_there_before_is_put_back(tmp_path: Path) -> None:
    (tmp_path / "cice_history.nc").write_text("before")
    (tmp_path / "mine.txt").write_text("before")
    refused(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "cice_history.nc": "before", "mine.txt": "before",
    }  # fmt: skip


def test_a_run_that_is_not_refused_keeps_all(tmp_path: Path) -> None:
    with files_removed_on_error() as made:
        made.make_folder(tmp_path / "run" / "logs")
        made.write(tmp_path / "run" / "a", write)
    assert (tmp_path / "run" / "a").read_text() == "made here"
