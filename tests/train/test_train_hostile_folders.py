"""Hostile run folders given to every command that takes one: nothing runs, nothing outside is written, one line."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from conftest import launch
from hostile_folders import ALL, HOSTILE_ENSEMBLES, HOSTILE_RUNS, WRITE, contents, make_victim
from many_runs import Outcome, run_many

Outcomes = dict[tuple[str, str], Outcome]
SMALL = ("training.epochs=1", "model.name=mlp", "model.hidden_size=4", "training.engine=eager")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, small_history: Path) -> tuple[Path, Path]:
    """The folders of a run and of an ensemble."""
    folder = tmp_path_factory.mktemp("trained")
    settings = [f"data.data_path={small_history}", *SMALL[:1]]
    jobs = [["train", f"output.model_dir={folder / 'run'}", *settings],
            ["ensemble", f"output.model_dir={folder / 'ensemble'}", *settings, "--members", "2"]]  # fmt: skip
    assert [outcome.codes for outcome in run_many(folder / "logs", None, jobs)] == [[0], [0]]
    return folder / "run", folder / "ensemble"


def command(use: str, path: Path, history: Path) -> list[str]:
    """The arguments that give a folder to the package."""
    output = str(path.parent / "out")
    return {
        "predict": ["predict", str(path), "--data", str(history), "--output", f"{output}.nc"],
        "export": ["export", str(path), "--output", f"{output}.pt"],
        "export c": ["export", str(path), "--format", "c", "--output", f"{output}.c"],
        "report": ["report", str(path)],
        "crate": ["report", str(path), "--ro-crate"],
        "reproduce": ["reproduce", str(path), "--output", f"{output}-again"],
        "resume": ["train", "--resume", str(path), "--epochs", "2"],
        "settings": ["train", str(path / "config.yaml"), "--overwrite", "--epochs", "1"],
        "settings resume": ["train", str(path / "config.yaml"), "--resume", "--epochs", "2"],
        "ensemble": ["ensemble", "--resume", "--output", str(path), "--epochs", "1", "--members", "3"],
    }[use]


def _copied(source: Path, run: Path) -> Path:
    """Return a copy whose settings name its own place: a member's are compared with those of the ensemble."""
    shutil.copytree(source, run, symlinks=True)
    for settings in run.rglob("config.yaml"):
        settings.write_text(settings.read_text().replace(str(source), str(run)))
    return run


@pytest.fixture(scope="module")
def outcomes(
    trained: tuple[Path, Path], small_history: Path, tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Outcomes:  # fmt: skip
    folder = tmp_path_factory.mktemp("hostile")
    victim, trace = make_victim(folder / "victim"), folder / "trace"
    before, jobs = contents(victim), {}
    for source, hostile in zip(trained, (HOSTILE_RUNS, HOSTILE_ENSEMBLES), strict=True):
        for number, (name, (spoil, uses)) in enumerate(hostile.items()):
            every = (*ALL,) if request.config.getoption("--full") and hostile is HOSTILE_RUNS else uses
            for use in dict.fromkeys((*uses, *every)):
                own = folder / f"{source.name}-{number}-{use}".replace(" ", "-")
                own.mkdir()
                spoil(_copied(source, own / "run"), victim)
                jobs[name, use] = command(use, own / "run", small_history)
    os.environ["TRACE_OF_STRANGERS"] = str(trace)
    try:
        found = dict(zip(jobs, run_many(folder / "logs", None, list(jobs.values())), strict=True))
    finally:
        del os.environ["TRACE_OF_STRANGERS"]
    assert not trace.exists(), "code of a stranger has run"
    assert contents(victim) == before, "files outside of the folder were written"
    return found


@pytest.mark.parametrize("name", [*HOSTILE_RUNS, *HOSTILE_ENSEMBLES])
def test_a_hostile_folder_runs_nothing_writes_nothing_outside_and_is_told_in_one_line(
    outcomes: Outcomes, name: str
) -> None:
    for (of, use), outcome in outcomes.items():
        if of == name:
            assert outcome.codes[0] in (0, 2), (use, outcome.stderr)
            assert "Traceback" not in outcome.stderr
            assert len(outcome.our_lines) == int(outcome.codes[0] != 0), (use, outcome.stderr)


# Aimed at a command that writes or builds a network, and so refused by it.
REFUSED = {
    **{name: ("reproduce",) for name in HOSTILE_RUNS if name.startswith(("a dotted key", "a key that", "recorded"))},
    "settings name code": ("export", "report", *WRITE),
    **{f"settings name a {what}": WRITE for what in ("model file", "tracker's folder")},
    "settings name a folder": ("settings", "settings resume"),
    "settings name a prediction": ("resume",),
    **{name: ("resume",) for name in HOSTILE_RUNS if name.startswith("linked") and name != "linked statistics"},
    **{name: ("resume",) for name in HOSTILE_RUNS if "tracker" in name},
    **{name: ("ensemble",) for name in HOSTILE_ENSEMBLES if "name" in name or "linked" in name or "pipe" in name},
    "members elsewhere": ("predict", "export"),
}


def test_what_is_aimed_at_code_or_at_files_elsewhere_is_refused(outcomes: Outcomes) -> None:
    assert len(REFUSED) > 15
    taken = [(name, use) for name, uses in REFUSED.items() for use in uses if outcomes[name, use].codes != [2]]
    assert taken == []


def test_the_same_folder_is_taken_with_trust_or_with_the_setting_on_the_command_line(
    trained: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the refusals above say nothing."""
    monkeypatch.setenv("TRACE_OF_STRANGERS", str(tmp_path / "trace"))
    run = Path(shutil.copytree(trained[0], tmp_path / "run"))
    HOSTILE_RUNS["settings name code"][0](run, tmp_path)
    environ = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])}
    done = launch(["-m", "mpitrain", "report", str(run)], environ=environ)
    assert (done.returncode, (tmp_path / "trace").exists()) == (2, False)
    launch(["-m", "mpitrain", "report", str(run), "--trust-code"], environ=environ)
    assert (tmp_path / "trace").exists()


MODULES = ("json", "numpy", "torch", "mpi4py", "yaml", "pydantic", "h5py", "matplotlib", "selectors", "mpitrain")
SHORT = ("model.name=mlp", "model.hidden_size=4", "training.epochs=1", "training.engine=eager")
LAUNCH = ("launch", "--scheduler", "local", "-n", "2", "--submit", *SHORT)
FROM_A_STRANGERS_FOLDER = {
    "train": (2, ("train", "config.yaml", "--output", "again")),
    "report": (None, ("report", ".")),
    "a job": (None, (*LAUNCH, "data.data_path=HISTORY", "output.model_dir=job")),
    "bench": (None, ("bench", "step", "--ranks", "1", "--networks", "7-4-1", "--batch", "64", "--rounds", "1",
                     "--steps", "2", "--warm-up", "2", "--engines", "eager-any", "--samples", "256")),
    "verify": (None, ("verify", "--invariance", "--ranks", "1", "--case", "PET", *SHORT, "data.data_path=HISTORY")),
}  # fmt: skip


@pytest.mark.lab
@pytest.mark.parametrize("use", FROM_A_STRANGERS_FOLDER)
def test_the_command_runs_no_module_of_the_current_folder(
    trained: tuple[Path, Path], small_history: Path, tmp_path: Path, use: str
) -> None:
    """As `mpitrain` does; `python -m` itself would look there first (see `mpitrain help security`)."""
    run = Path(shutil.copytree(trained[0], tmp_path / "run"))
    settings = run / "config.yaml"
    text = settings.read_text().replace("type: adam", "type: torch.optim:RMSprop")
    assert "RMSprop" in text
    settings.write_text(text)
    for name in MODULES:
        (run / f"{name}.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'a').write({name!r}); raise SystemExit(77)")
    num_ranks, words = FROM_A_STRANGERS_FOLDER[use]
    words = [word.replace("HISTORY", str(small_history)) for word in words]
    environ = {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = launch(["-P", "-m", "mpitrain", *words], num_ranks, cwd=run, environ=environ)
    assert not (tmp_path / "trace").exists(), (tmp_path / "trace").read_text()
    assert done.returncode == 0, done.stderr
