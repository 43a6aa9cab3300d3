"""`mpitrain reproduce`: equal on other numbers of ranks, refused for other data, a verdict that names what differs."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Finished, launch
from rocrate.rocrate import ROCrate

from mpitrain.cli.main import main
from mpitrain.config import load_run_config, render_yaml
from mpitrain.errors import MissingDependencyError, UserError
from mpitrain.runs.reproduction.crate import write_crate
from mpitrain.runs.reproduction.energy import EnergyMeter
from mpitrain.runs.reproduction.reproduce import RecordedRun, deciding, differences
from mpitrain.synthetic.history import write_synthetic_history


@pytest.fixture(scope="module")
def default_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a default run on two ranks."""
    cwd = tmp_path_factory.mktemp("default")
    done = launch(["-m", "mpitrain", "--epochs", "3"], 2, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return cwd / "mpitrain_run"


@pytest.fixture
def run(default_run: Path, tmp_path: Path) -> Path:
    """A copy of that folder, at its own place, to be spoilt."""
    folder = tmp_path / "mpitrain_run"
    shutil.copytree(default_run, folder, symlinks=True)
    change(folder, lambda record: record["data"][0].update(path=str(folder / "cice_history.nc")))
    return folder


def record_of(run: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((run / "run_record.json").read_text())
    return record


def change(run: Path, how: Any) -> None:
    record = record_of(run)
    how(record)
    (run / "run_record.json").write_text(json.dumps(record))


def reproduce(run: Path, num_ranks: int | None = None, *more: str) -> Finished:
    return launch(["-m", "mpitrain", "reproduce", str(run), *more], num_ranks, cwd=run.parent)


def verdict_of(done: Finished) -> str:
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("reproduced: ")]
    return line


def test_the_record_tells_what_the_run_was(default_run: Path) -> None:
    record = record_of(default_run)
    data = default_run / "cice_history.nc"
    assert record["data"] == [
        {"path": str(data), "bytes": data.stat().st_size, "sha256": hashlib.sha256(data.read_bytes()).hexdigest()}
    ]
    assert record["settings"] == load_run_config(default_run / "config.yaml").config.model_dump(mode="json")
    assert (record["ranks"]["number"], record["ranks"]["nodes"], record["ranks"]["transport"]) == (2, 1, "mpi")
    assert record["machines"][0]["ranks"] == [0, 1]
    assert record["machines"][0]["cpu"]
    assert record["machines"][0]["mpi_library"]
    assert record["versions"]["torch"]
    assert record["command_line"][-3:] == ["mpitrain", "--epochs", "3"]
    assert record["started"] < record["ended"]
    assert 0 < record["used"]["wall_s"] < record["used"]["cpu_s"] + 600
    assert record["result"]["weights_sha256"] in (default_run / "report.html").read_text()
    assert record["git"] is None or len(record["git"]["commit"]) == 40


def test_another_number_of_ranks_gives_the_same(default_run: Path) -> None:
    done = reproduce(default_run, 3)
    assert done.returncode == 0, done.stderr
    sha256 = record_of(default_run)["result"]["weights_sha256"]
    assert verdict_of(done) == f"reproduced: equal, SHA-256 {sha256[:12]} (2 ranks then, 3 here)"
    again = default_run.with_name("mpitrain_run-reproduced")
    assert record_of(again)["result"]["weights_sha256"] == sha256


def test_a_run_that_computed_with_torch_differs_in_nothing_on_the_same_machine(tmp_path: Path) -> None:
    eager = ("--epochs", "1", "training.engine=eager", "data.num_samples=512")
    assert launch(["-m", "mpitrain", *eager], None, cwd=tmp_path).returncode == 0
    assert record_of(tmp_path / "mpitrain_run")["machines"][0]["cpu_capability"]
    done = reproduce(tmp_path / "mpitrain_run")
    assert done.returncode == 0, done.stderr
    assert verdict_of(done).endswith("(1 rank then, 1 here)")
    assert "differs: " not in done.stderr


def test_data_that_lie_elsewhere_are_named_or_found_in_the_run_folder(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    quick = ("--data", str(there / "history.nc"), "--epochs", "1", "data.max_patterns=512", "--output", "run")
    write_synthetic_history(there / "history.nc", seed=0)
    assert launch(["-m", "mpitrain", *quick], None, cwd=tmp_path).returncode == 0
    there.rename(here)
    done = reproduce(tmp_path / "run")
    assert done.returncode == 2
    assert "history.nc: cannot be found" in done.our_lines[0]
    assert reproduce(tmp_path / "run", None, "--data", str(here / "history.nc")).returncode == 0
    shutil.copy(here / "history.nc", tmp_path / "run")
    assert reproduce(tmp_path / "run").returncode == 0


def test_a_changed_byte_of_the_data_is_refused_by_name(run: Path) -> None:
    data = run / "cice_history.nc"
    content = bytearray(data.read_bytes())
    content[-1] ^= 1
    data.write_bytes(content)
    done = reproduce(run, 2)
    assert done.returncode == 2
    (line,) = done.our_lines
    assert f"{data}: is not the file that the run read (SHA-256 " in line
    assert not run.with_name("mpitrain_run-reproduced").exists()


@pytest.mark.lab
def test_another_torch_is_named_before_the_training_and_in_the_verdict(run: Path) -> None:
    change(run, lambda record: record["versions"].update(torch="2.5.1"))
    change(run, lambda record: record["result"].update(weights_sha256="0" * 64))
    done = reproduce(run)
    assert done.returncode == 1, done.stderr
    assert "differs: torch 2.5.1 then, 2." in done.stderr
    assert "NOT equal, SHA-256 000000000000 then, " in verdict_of(done)
    assert "these can change bits and differ: torch 2.5.1 then, 2." in verdict_of(done)


def test_what_cannot_be_reproduced_says_why(run: Path, tmp_path: Path) -> None:
    (run / "cice_history.nc").unlink()
    gone = reproduce(run)
    assert (gone.returncode, len(gone.our_lines)) == (2, 1)
    assert "cice_history.nc: cannot be found" in gone.our_lines[0]
    change(run, lambda record: record.pop("result"))
    assert "the run has not ended" in reproduce(run).our_lines[0]
    assert "run_record.json: cannot be read" in reproduce(tmp_path / "nowhere").our_lines[0]


@pytest.mark.lab
def test_the_record_is_an_ro_crate_that_its_own_library_reads(run: Path, default_run: Path) -> None:
    done = launch(["-m", "mpitrain", "report", str(run), "--ro-crate"])
    assert (done.returncode, done.stdout) == (0, f"RO-Crate: {run / 'ro-crate-metadata.json'}\n"), done.stderr
    crate, record = ROCrate(run), record_of(run)
    action = crate.root_dataset["mentions"]
    assert (action.type, action["startTime"], action["endTime"]) == ("CreateAction", record["started"], record["ended"])
    assert crate.root_dataset["conformsTo"].id.startswith("https://w3id.org/ro/wfrun/process/")
    objects = {entity.id: entity for entity in action["object"]}
    assert set(objects) == {"cice_history.nc", "config.yaml"}
    assert objects["cice_history.nc"]["sha256"] == record["data"][0]["sha256"]
    assert {"model.pt", "metrics.jsonl", "report.html", "logs/rank-0001.log"} <= {it.id for it in action["result"]}
    program = action["instrument"]
    torch = next(it for it in program["softwareRequirements"] if it["name"] == "torch")
    assert torch["version"] == record["versions"]["torch"]
    assert program["processorRequirements"] == record["machines"][0]["cpu"]
    used = {it["name"]: json.loads(it["value"]) for it in action["resourceUsage"]}
    assert used == {**record["used"], "ranks": 2, "nodes": 1}
    assert all((run / entity.id).is_file() for entity in crate.root_dataset["hasPart"])
    shutil.move(run / "cice_history.nc", run.parent)  # data elsewhere have an address
    change(run, lambda record: record["data"][0].update(path=str(run.parent / "cice_history.nc")))
    write_crate(run)
    files = [entity.id for entity in ROCrate(run).root_dataset["mentions"]["object"]]
    assert files == [(run.parent / "cice_history.nc").as_uri(), "config.yaml"]


@pytest.mark.lab
def test_an_ro_crate_that_cannot_be_written_says_why(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(run, lambda record: record.pop("result"))
    with pytest.raises(UserError, match="the run has not ended"):
        write_crate(run)
    monkeypatch.setitem(sys.modules, "rocrate.rocrate", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'rocrate>=0.13'"):
        write_crate(run)


def machines(**facts: str) -> dict[str, Any]:
    return {"versions": {"torch": "2"}, "machines": [{"cpu": "a", "system": "x", **facts}], "git": None}


def test_differences_name_each_fact_and_those_that_decide_come_first() -> None:
    here = {"versions": {"torch": "3", "h5py": "1"}, "machines": [{"cpu": "b", "system": "y"}], "git": None}
    lines = differences(machines(), here)
    assert lines == [
        "torch 2 then, 3 here",
        "CPU: a then, b here",
        "h5py (none) then, 1 here",
        "system: x then, y here",
    ]
    assert deciding(lines) == lines[:2]
    assert differences(machines(), machines()) == []
    git = {"commit": "c" * 40, "changed_files": ["a.py"]}
    assert differences(machines(), {**machines(), "git": git}) == [
        f"git: no repository then, {'c' * 12} with 1 changed files here"
    ]


def test_the_settings_of_a_reproduction_fix_what_ranks_decided(tmp_path: Path) -> None:
    config = load_run_config(
        None,
        [
            "training.batch_size=16",
            "training.virtual_ranks=8",
            "data.num_samples=9",
            "prediction.output_filename=mine.nc",
            "training.max_steps=3",
        ],
    ).config
    record = {
        "settings": config.model_dump(mode="json"), "working_folder": "/somewhere", "data": [{"path": "/d/a.nc"}],
        "held_out_files": 0,
        "decided": {"training.global_batch_size": 32, "training.virtual_ranks": 16, "training.engine": "compiled"},
    }  # fmt: skip
    again = RecordedRun(tmp_path, record, False).settings_in("new")
    assert (again.training.batch_size, again.training.global_batch_size, again.training.virtual_ranks) == (None, 32, 16)
    assert (again.data.data_path, again.data.max_patterns, again.data.num_samples) == (["/d/a.nc"], 9, None)
    assert (again.prediction.output_filename, again.training.max_steps) == (None, None)
    assert again.output.model_dir == "new"
    assert load_run_config(None).config.training == again.training.model_copy(
        update={"global_batch_size": None, "virtual_ranks": None, "engine": "auto"}
    )
    assert render_yaml(again)


def test_energy_counts_packages_and_their_wrap(tmp_path: Path) -> None:
    assert EnergyMeter(tmp_path).stop().get("cpu") is None
    for name, value in (("intel-rapl:0", 900), ("intel-rapl:0:0", 5), ("intel-rapl:1", 100)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(f"{value}\n")
        (tmp_path / name / "max_energy_range_uj").write_text("1000\n")
    meter = EnergyMeter(tmp_path)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("50\n")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("300\n")
    assert meter.stop()["cpu"] == pytest.approx((150 + 200) / 1e6)


def test_the_record_of_a_run_that_was_resumed_twice_has_both_launches_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    values = np.random.default_rng(0).normal(size=64)
    np.savez("f.npz", x=values, y=2 * values)
    words = ["variables.input_variables=[x]", "variables.output_variables=[y]", "--data", "f.npz", "--output", "run"]
    assert main(["train", *words, "model.name=mlp", "training.early_stopping_patience=99", "--epochs", "1"]) == 0
    for epochs in (2, 3):
        assert main(["train", "--resume", "run", "--epochs", str(epochs)]) == 0
    assert len(json.loads(Path("run/run_record.json").read_text())["earlier"]) == 2


def test_a_run_with_files_to_validate_and_to_test_on_is_trained_again(tmp_path: Path) -> None:
    for number, name in enumerate(("trained.csv", "held.csv", "tested.csv")):
        rows = np.random.default_rng(number).normal(size=(200, 2))
        np.savetxt(tmp_path / name, rows, delimiter=",", header="x,y", comments="")
    words = ["data.data_path=trained.csv", "data.validation_path=h*.csv", "data.test_path=tested.csv",
             "variables.input_variables=[x]", "variables.output_variables=[y]"]  # fmt: skip
    folder = tmp_path / "of_files"
    done = launch(["-m", "mpitrain", f"output.model_dir={folder}", *words, "training.epochs=1"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "else").mkdir()
    (tmp_path / "held_later.csv").write_text("x,y\n1,2\n")
    (tmp_path / "tested.csv").unlink()
    done = launch(["-m", "mpitrain", "reproduce", str(folder)], cwd=tmp_path / "else")
    assert done.returncode == 0, done.stderr
    assert "reproduced: equal" in verdict_of(done)


@pytest.mark.parametrize(
    ("entries", "number", "expected"),
    [("[b.nc]", 0, ["a.nc"]), ("['b*.nc']", 2, []), ("['b*.nc']", 1, ["a.nc"]), ("['b*.nc']", 0, []), ("null", 1, [])],
)
def test_files_to_validate_on_are_counted_in_the_record(
    tmp_path: Path, entries: str, number: int, expected: list[str]
) -> None:
    """In records of before they are not, and the names of plain paths are counted."""
    config = load_run_config(None, ["data.data_path=a.nc", f"data.validation_path={entries}"]).config
    record = {
        "settings": config.model_dump(mode="json"), "working_folder": "/", "held_out_files": number,
        "decided": {"training.engine": "compiled", "training.global_batch_size": 8},
        "data": [{"path": "a.nc"}, {"path": "b.nc"}],
    }  # fmt: skip
    run = RecordedRun(tmp_path, record, False)
    if expected:
        again = run.settings_in("new").data
        assert (again.data_path, again.validation_path) == (expected, ["b.nc"])
    else:
        with pytest.raises(UserError, match="does not name the files that the run was trained on"):
            run.settings_in("new")
