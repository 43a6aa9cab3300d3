"""Networks trained on data of known noise: what their spread foretells is the error, where theory says so."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import launch

from mpitrain.ensemble.calibration import Calibration, calibration_of
from mpitrain.models.files.stored_network import load_network

NOISE, NUM_SAMPLES = 0.3, 120
SETTINGS = [
    "model.name=mlp", "model.hidden_size=16", "model.hidden_activation=tanh", "training.epochs=60",
    "training.global_batch_size=30", "training.optimizer.learning_rate=0.02", "data.validation_split=0",
    "variables.input_variables=[x, y]", "variables.output_variables=[z]",
]  # fmt: skip


def relation(inputs: np.ndarray) -> np.ndarray:
    return np.sin(2 * inputs[:, 0]) + inputs[:, 1] ** 2


def write_table(path: Path, seed: int) -> None:
    numbers = np.random.default_rng(seed)
    inputs = numbers.uniform(-1, 1, (NUM_SAMPLES, 2))
    targets = relation(inputs) + NOISE * numbers.standard_normal(NUM_SAMPLES)
    rows = (f"{x},{y},{z}\n" for (x, y), z in zip(inputs, targets, strict=True))
    path.write_text("x,y,z\n" + "".join(rows))


def answers_of(folder: Path, inputs: np.ndarray) -> np.ndarray:
    """What each member says (M, N)."""
    members = sorted((folder / "members").iterdir())
    networks = [load_network(member / "model.pt") for member in members]
    with torch.no_grad():
        return np.stack([one.module(torch.from_numpy(inputs).float())[:, 0].double().numpy() for one in networks])


def trained(folder: Path, *words: str) -> np.ndarray:
    """Train an ensemble, and return its members' answers (M, N) at points of their own, the same for all ensembles."""
    done = launch(["-m", "mpitrain", "ensemble", *SETTINGS, *words, f"output.model_dir={folder}"], timeout_s=500)
    assert done.returncode == 0, done.stderr
    return answers_of(folder, np.random.default_rng(99).uniform(-1, 1, (1500, 2)))


def against_networks(members: np.ndarray, truths: np.ndarray, noise_variance: float) -> list[Calibration]:
    """Compare the members with each of other networks, to which noise is added as to the data."""
    numbers = np.random.default_rng(7)
    noisy = truths + NOISE * numbers.standard_normal(truths.shape)
    return [calibration_of(members, truth, noise_variance) for truth in noisy]


def overall_ratio(found: list[Calibration]) -> float:
    foretold, errors = (np.array([getattr(one, name) for one in found]) for name in ("foretold", "error"))
    return float(np.sqrt((foretold**2).mean() / (errors**2).mean()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("noise")


@pytest.fixture(scope="module")
def answers(folder: Path, request: pytest.FixtureRequest) -> tuple[np.ndarray, np.ndarray]:
    """Networks that were each trained on data of its own: members (M, N), and others that stand for the truth."""
    num_members, num_truths = (32, 16) if request.config.getoption("--full") else (12, 4)
    tables = [folder / f"{number}.csv" for number in range(num_members + num_truths)]
    for number, table in enumerate(tables):
        write_table(table, number)
    paths = ", ".join(map(str, tables))
    found = trained(folder / "own_data", f"ensemble.grid={{data.data_path: [{paths}]}}")
    return found[:num_members], found[num_members:]


def test_networks_of_data_of_their_own_are_calibrated(answers: tuple[np.ndarray, np.ndarray]):
    """A truth that is one more such network, with the noise of the data, is one more draw of what the members are."""
    members, truths = answers
    spread = members.std(0, ddof=1).mean()
    assert 0.2 * NOISE < spread < 2 * NOISE  # neither of the two is all of the error
    assert 0.8 < overall_ratio(against_networks(members, truths, NOISE**2)) < 1.2
    assert 0.8 < overall_ratio([calibration_of(members, truth) for truth in truths]) < 1.2
    # Less is foretold than happens where the noise is forgotten.
    assert overall_ratio(against_networks(members, truths, 0.0)) < 0.8


def test_members_of_one_and_the_same_data_foretell_too_little(
    answers: tuple[np.ndarray, np.ndarray], tmp_path: Path, request: pytest.FixtureRequest
):
    if not request.config.getoption("--full"):
        pytest.skip("with --full")
    members, truths = answers
    write_table(tmp_path / "one.csv", 0)
    of_one = trained(
        tmp_path / "one_data", f"data.data_path={tmp_path / 'one.csv'}", f"ensemble.members={len(members)}"
    )
    assert overall_ratio([calibration_of(of_one, truth) for truth in truths]) < 0.8


@pytest.mark.usefixtures("answers")
def test_data_of_a_setting_is_what_its_member_learns(folder: Path):
    ensemble = folder / "own_data"
    assert not (ensemble / "cice_history.nc").exists()
    assert f"data_path: {folder / '0.csv'}\n" in (ensemble / "members/0000/config.yaml").read_text()
    found = (ensemble / "best.yaml").read_text()
    assert re.search(rf"^  data_path: {folder}/\d+\.csv$", found, re.MULTILINE)
