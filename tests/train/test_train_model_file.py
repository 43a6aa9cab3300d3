"""Where the exported model goes: `output.model_file`, the older `training.model output`, is found wanting at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from conftest import REFERENCE_CASE, launch, train

HISTORY = REFERENCE_CASE / "cice_history.nc"
DATA = f"data.data_path={HISTORY}"
# A run that met its fault after the last step would not end in time.
ENDLESS = "training.epochs=100000000"


@pytest.mark.parametrize("num_ranks", [None, 2])
def test_a_missing_folder_is_found_before_the_first_step(tmp_path: Path, num_ranks: int | None) -> None:
    run = tmp_path / "run"
    done = train(num_ranks, run, DATA, ENDLESS, "output.model_file=own/model.pt")
    assert done.returncode == 2, done.stderr
    assert done.our_lines == [
        f"mpitrain: error: output.model_file=own/model.pt: the folder {run / 'own'} does not exist or is not writable; "
        "create it, or give a name such as model.pt"
    ]
    assert not run.exists()


@pytest.mark.lab
def test_the_older_spelling_is_found_too(tmp_path: Path) -> None:
    settings = {
        "ffnn": {"hiddenSize": 4},
        "training": {"cice history": str(HISTORY), "model output": "own/model.pt", "epochs": 100_000_000},
    }
    (tmp_path / "older.yaml").write_text(yaml.safe_dump(settings))
    done = launch(["-m", "mpitrain", "train", "older.yaml", "--output", "run"], cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "output.model_file=own/model.pt: the folder " in done.our_lines[0]


@pytest.mark.lab
def test_a_folder_in_the_models_place(tmp_path: Path) -> None:
    (tmp_path / "run" / "model.pt").mkdir(parents=True)
    done = train(None, tmp_path / "run", DATA, ENDLESS)
    assert done.returncode == 2, done.stderr
    assert done.our_lines == [
        f"mpitrain: error: output.model_file=model.pt: {tmp_path / 'run' / 'model.pt'} is a folder; give another name, "
        "or move it away"
    ]


@pytest.mark.lab
@pytest.mark.parametrize("place", ["own/model.pt", "{elsewhere}/model.pt", "arctic.pt"])
def test_the_summary_names_the_file_that_is_there(tmp_path: Path, place: str) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    (run / "own").mkdir(parents=True)
    elsewhere.mkdir()
    given = place.format(elsewhere=elsewhere)
    done = train(None, run, DATA, "training.epochs=1", f"output.model_file={given}")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("Model ")]
    model = Path(line.split(maxsplit=1)[1])
    assert model == run / given
    assert model.is_file()
    assert model.with_name(f"normalization.{model.name}").is_file()


@pytest.mark.lab
def test_the_doctor_finds_it_before_a_job_does(tmp_path: Path) -> None:
    settings = [f"output.model_dir={tmp_path / 'run'}", "output.model_file=own/model.pt"]
    done = launch(["-m", "mpitrain", "doctor", "--json", *settings])
    (result,) = [result for result in json.loads(done.stdout)["results"] if result["name"] == "run folder"]
    assert result["status"] == "fail"
    assert result["found"].startswith("output.model_file=own/model.pt: the folder ")
    assert result["fix"] == "create it, or give a name such as model.pt"
