"""The networks of an ensemble as one: mean, spread and their derivatives, from model.pt and from `predict`."""

from __future__ import annotations

from pathlib import Path

import netCDF4
import numpy as np
import torch
from conftest import launch
from networks import build_icenet
from test_ensemble_runs import SMALL, ensemble

from mpitrain.models.ensemble import EnsembleNetwork
from mpitrain.models.files.torchscript import load_and_run_code


def test_mean_and_spread_are_those_of_the_members():
    networks = [build_icenet(7, 4, "tanh", seed) for seed in range(5)]
    model, inputs = EnsembleNetwork(networks), torch.randn(6, 7)
    values = np.stack([network(inputs).detach().numpy() for network in networks]).astype(np.float64)
    assert np.allclose(model(inputs).detach(), values.mean(0), rtol=1e-6)
    assert np.allclose(model.spread(inputs).detach(), values.std(0, ddof=1), rtol=1e-5)
    jacobians = np.stack([network.jac(inputs).detach().numpy() for network in networks]).astype(np.float64)
    assert np.allclose(model.jac(inputs).detach(), jacobians.mean(0), rtol=1e-5)
    assert np.allclose(model.jac_spread(inputs).detach(), jacobians.std(0, ddof=1), rtol=1e-5)


def test_the_spread_of_one_member_is_zero():
    model = EnsembleNetwork([build_icenet(7, 4, "tanh", 0)])
    assert torch.equal(model.spread(torch.randn(3, 7)), torch.zeros(3, 1))


def test_files_of_an_ensemble_agree(tmp_path: Path, small_history: Path):
    folder, one_fails = tmp_path / "ens", "ensemble.grid.training.optimizer.learning_rate=[0.001,1e30]"
    words = [f"data.data_path={small_history}", *SMALL, "ensemble.members=3", "training.epochs=1", one_fails]
    assert ensemble(2, folder, *words).returncode == 0
    prediction = tmp_path / "prediction.nc"
    done = launch(["-m", "mpitrain", "predict", str(folder), "--output", str(prediction), "--layout", "rows"], 2)
    assert done.returncode == 0, done.stderr
    scripted = load_and_run_code(folder / "model.pt")
    with netCDF4.Dataset(prediction) as file:
        members = np.stack([file[f"aice_h_member_{number}"][:] for number in ("0000", "0002", "0004")])
        assert np.allclose(file["aice_h_predicted"][:], members.mean(0), atol=1e-6)
        assert np.allclose(file["aice_h_spread"][:], members.std(0, ddof=1), atol=1e-6)
        assert file["daice_h_dsst_h_spread"][:].min() > 0
        assert file["aice_h_spread"].long_name == "ice area (aggregate), standard deviation over 3 members"
    single = load_and_run_code(folder / "members/0002/model.pt")
    inputs = torch.randn(4, 7)
    assert torch.allclose(scripted.member_values(inputs)[1], single(inputs))
    assert scripted.jac(inputs).shape == (4, 1, 7)
    alone = launch(["-m", "mpitrain", "report", str(folder / "members/0002")])
    assert alone.returncode == 0, alone.stderr
    page = (folder / "report.html").read_text()
    told = ("Loss of each member", "Spread against error", "foretold over error", "Rank of the truth")
    for words in (
        *told,
        "What was trained",
        "Prediction against truth",
        "The mean of the members over all held-out samples",
        "Where the members differ",
    ):
        assert words in page
