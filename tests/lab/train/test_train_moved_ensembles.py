"""An ensemble's folder that was moved or copied: it goes on, predicts and exports, or one line says what to do."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest
from many_runs import Outcome, run_many

SMALL = ("training.epochs=1", "model.name=mlp", "model.hidden_size=4", "training.engine=eager", "--members", "2")
KINDS = ("data of the user", "synthetic data")


def hashes_of(folder: Path) -> list[str]:
    with (folder / "ensemble.csv").open() as table:
        return [row["weights_sha256"] for row in csv.DictReader(table)]


def commands(folder: Path, history: Path) -> dict[str, list[str]]:
    """Return what is done in `folder` with the ensemble `moved` and its copies."""
    moved, resume = folder / "moved", ["ensemble", "--resume", "--output"]
    for copy in ("copied", "by its file"):
        shutil.copytree(moved, folder / copy)
    (moved / "report.html").unlink()
    by_its_file = folder / "by its file"
    return {
        "predict": ["predict", str(moved), "--data", str(history), "--output", str(folder / "out.nc")],
        "export": ["export", str(moved), "--output", str(folder / "out.pt")],
        "reproduce": ["reproduce", str(moved / "members/0001"), "--output", str(folder / "again")],
        "report": ["report", str(moved)],
        "report of a member": ["report", str(moved / "members/0000")],
        "other settings": [*resume, str(moved), "--epochs", "2"],
        "resume": [*resume, str(moved)],
        "one more": [*resume, str(folder / "copied"), "--members", "3"],
        "without its place": ["ensemble", str(by_its_file / "config.yaml"), "--resume"],
        "one more by its file": ["ensemble", str(by_its_file / "config.yaml"), *resume[1:], str(by_its_file),
                                 "--members", "3"],
    }  # fmt: skip


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, small_history: Path) -> dict[str, tuple[Path, dict[str, Outcome]]]:
    """For each kind of data: the folder of all, and what became of the commands."""
    folder = tmp_path_factory.mktemp("moved")
    data = (f"data.data_path={small_history}", "data.num_samples=500")
    first = [["ensemble", f"output.model_dir={folder / kind / 'here'}", words, *SMALL]
             for kind, words in zip(KINDS, data, strict=True)]  # fmt: skip
    assert [one.codes for one in run_many(folder / "first", None, first)] == [[0], [0]]
    jobs = {}
    for kind in KINDS:
        (folder / kind / "here").rename(folder / kind / "moved")
        jobs |= {(kind, what): words for what, words in commands(folder / kind, small_history).items()}
    outcomes = dict(zip(jobs, run_many(folder / "then", None, list(jobs.values())), strict=True))
    return {kind: (folder / kind, {what: one for (of, what), one in outcomes.items() if of == kind}) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on_where_it_is_now(ended: dict[str, tuple[Path, dict[str, Outcome]]], kind: str) -> None:
    folder, outcomes = ended[kind]
    for what in ("resume", "one more", "one more by its file", "predict", "export", "report of a member"):
        assert outcomes[what].codes == [0], (what, outcomes[what].stderr)
    before = hashes_of(folder / "moved")
    for copy in ("copied", "by its file"):
        assert hashes_of(folder / copy)[:2] == before
        assert len(set(hashes_of(folder / copy))) == 3
    assert not (folder / "here").exists(), "the folder that it came from was made again"


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_is_one_line_that_says_what_to_do(
    ended: dict[str, tuple[Path, dict[str, Outcome]]], kind: str
) -> None:
    folder, outcomes = ended[kind]
    moved = folder / "moved"
    for what, said in {
        "other settings": "member 0000 (training.epochs=1 there, 2 here)",
        "without its place": f"belongs to a run; give --output FOLDER: "
        f"{folder / 'by its file'} if the run was moved there",
        "report": f"run `mpitrain ensemble --resume --output {moved}` to rewrite its page, or give the folder of a "
        "member",
    }.items():
        (line,) = outcomes[what].our_lines
        assert (outcomes[what].codes, said in line) == ([2], True), (what, line)
    assert (moved / "report.html").exists()


def test_a_member_is_trained_again_where_its_data_is_still_there(
    ended: dict[str, tuple[Path, dict[str, Outcome]]],
) -> None:
    folder, outcomes = ended["data of the user"]
    assert f"reproduced: equal, SHA-256 {hashes_of(folder / 'moved')[1][:12]}" in outcomes["reproduce"].stdout
    folder, outcomes = ended["synthetic data"]
    (line,) = outcomes["reproduce"].our_lines
    assert f"{folder / 'here/cice_history.nc'}: cannot be found" in line
    assert line.endswith("restore it")
