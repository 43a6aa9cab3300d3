"""One hash of the weights for any number of ranks, for each kind of network; and land that has no say."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import netCDF4
import numpy as np
import pytest
from conftest import losses_of
from many_runs import run_many
from played_runs import Run, fields, fitted_hashes, points, run_alone, runs, with_values

from mpitrain.synthetic.history import write_synthetic_history
from mpitrain.train.checkpoint.format import weights_sha256
from mpitrain.train.state import named_weights

MLP = (
    "model.name=mlp", "model.hidden_layers=3", "model.hidden_size=10", "model.hidden_activation=gelu",
)  # fmt: skip
UNET = (
    "model.name=unet", "model.hidden_layers=1", "model.hidden_size=3", "model.periodic=true", "data.samples=fields",
    "training.global_batch_size=16",
)  # fmt: skip
NETWORKS = {
    "icenet, compiled": (("model.hidden_size=8", "training.engine=compiled"), lambda: points(num_targets=1)),
    "icenet, eager": (("model.hidden_size=8", "training.engine=eager"), lambda: points(num_targets=1)),
    "mlp, compiled": ((*MLP, "training.engine=compiled"), points),
    "mlp, eager": ((*MLP, "training.engine=eager"), points),
    "mlp, traced": ((*MLP, "training.engine=traced"), points),
    "mlp, dropout": ((*MLP, "model.dropout=0.2", "training.engine=traced"), points),
    "mlp, batch norm and dropout": ((*MLP, "model.batch_norm=true", "model.dropout=0.2"), points),
    "unet": (UNET, fields),
    "unet, traced": ((*UNET, "training.engine=traced"), fields),
    "unet, eager": ((*UNET, "training.engine=eager"), fields),
    "unet, batch norm and dropout": ((*UNET, "model.batch_norm=true", "model.dropout=0.2"), fields),
    "unet, sync batch norm": ((*UNET, "model.batch_norm=true", "distributed.sync_batch_norm=true"), fields),
    "unet, linear part": ((*UNET, "model.linear_part=true"), fields),
    "cnn, linear part of each point": (
        (*UNET, "model.name=cnn", "model.linear_part=true", "model.grid=[6, 8]"),
        fields,
    ),
    "cnn, clipped": ((*UNET, "model.name=cnn", "training.gradient_clip_norm=0.1"), fields),
}


FROM_FILE = (
    "data.validation_split=0",
    "variables.input_variables=[sst_h, sss_h]",
    "training.global_batch_size=8",
)
MANY_RANKS = ("icenet, compiled", "mlp, compiled", "mlp, dropout")  # the others with --full


@pytest.mark.parametrize("name", NETWORKS)
def test_any_number_of_ranks_gives_one_hash(name, request):
    settings, samples = NETWORKS[name]
    settings = (*settings, "data.validation_split=0.2")
    (one,) = fitted_hashes(1, *settings, samples=samples())
    is_full = name in MANY_RANKS or request.config.getoption("--full")
    for num_ranks in (2, 3, 4, 8) if is_full else (3,):
        assert fitted_hashes(num_ranks, *settings, samples=samples()) == [one] * num_ranks
    assert fitted_hashes(1, *settings, "seed=1", samples=samples()) != [one]


def losses_and_weights(samples):
    run = run_alone(*UNET, "data.validation_split=0.2", samples=samples).fit()
    state = run.trainer.state
    return state.train_loss, state.validation_loss, run.sha256()


def test_targets_under_the_land_mask_have_no_say():
    samples = fields()
    is_land = samples.weights == 0
    assert 0.1 < is_land.mean() < 0.6
    expected = losses_and_weights(samples)
    for value in (1e6, -3.0, np.nan):
        assert losses_and_weights(with_values(samples, targets=np.where(is_land, value, samples.targets))) == expected
    seen = samples.targets.copy()
    seen[~is_land] += 0.01
    assert losses_and_weights(with_values(samples, targets=seen)) != expected


def test_inputs_without_a_measurement_are_the_feature_s_mean_whatever_they_hold():
    samples = fields()
    is_land = np.broadcast_to(samples.weights == 0, samples.inputs.shape)
    results = [
        losses_and_weights(with_values(samples, inputs=np.where(is_land, value, samples.inputs).astype(np.float32)))
        for value in (np.nan, np.inf, -np.inf)
    ]
    assert results[1:] == results[:1] * 2
    assert np.isfinite(results[0][0])
    assert results[0] != losses_and_weights(samples)


def test_the_loss_of_fields_is_over_ocean_points_only():
    samples = fields()
    run = run_alone(*UNET, "training.shuffle=false", "training.dtype=float64", samples=samples)
    (loss,) = run.steps(1)
    # Batch 0 is each virtual rank's first samples: the first 16.
    plan = run.parts.plan
    rows = plan.microbatch_rows
    fresh = run_alone(*UNET, "training.dtype=float64", samples=samples)
    piece = [fresh.engine.inputs.batches[v].samples for v in range(plan.num_virtual_ranks)]
    squares, weight = 0.0, 0.0
    for own in piece:
        errors = (fresh.model(own.inputs[:rows]).detach() - own.targets[:rows]) / fresh.model.output_std.view(-1, 1, 1)
        squares += float((own.weights[:rows] * errors**2).sum())
        weight += float(own.weights[:rows].sum())
    assert weight == samples.weights[:16].sum()
    assert loss == pytest.approx(squares / weight, rel=1e-12)


def test_weights_between_0_and_1_count_as_much():
    samples = fields()
    half = with_values(samples, weights=samples.weights * 0.5)
    one, other = (run_alone(*UNET, "training.dtype=float64", samples=own) for own in (samples, half))
    assert one.steps() == pytest.approx(other.steps(), rel=1e-12)
    uneven = samples.weights.copy()
    uneven[:, :, 0] *= 0.25
    assert runs(1, *UNET, samples=with_values(samples, weights=uneven), what=Run.steps)[0] != one.steps()


@pytest.mark.lab
def test_the_public_command_gives_one_hash_at_1_and_3_ranks(tmp_path: Path) -> None:
    """An mlp on points and a unet on fields that it reads from the file."""
    history = tmp_path / "history.nc"
    write_synthetic_history(history, seed=4, num_latitudes=20, num_longitudes=24, num_times=10)
    change_land(history, other := tmp_path / "other_land.nc")
    common = ["train", "training.epochs=2"]
    results = {}
    for num_ranks in (1, 3):
        unet = [*UNET, *FROM_FILE]
        jobs = {
            "mlp": [*MLP, "training.global_batch_size=256", f"data.data_path={history}"],
            "layer norm, residual": [
                *(*MLP, "model.layer_norm=true", "model.residual=true"),
                *("training.engine=compiled", f"data.data_path={history}"),
            ],
            "unet": [*unet, f"data.data_path={history}"],
            "unet, other land": [*unet, f"data.data_path={other}"],
        }
        folders = {name: tmp_path / f"{name}{num_ranks}" for name in jobs}
        outcomes = run_many(
            tmp_path / f"logs{num_ranks}", num_ranks,
            [[*common, *settings, f"output.model_dir={folders[name]}"] for name, settings in jobs.items()],
        )  # fmt: skip
        for (name, folder), outcome in zip(folders.items(), outcomes, strict=True):
            assert outcome.codes == [0] * num_ranks, outcome.stderr
            results[name, num_ranks] = exported_hash(folder), losses_of(folder)
    for name in jobs:
        assert results[name, 1] == results[name, 3]
        assert re.fullmatch("[0-9a-f]{64}", results[name, 1][0])
    assert results["unet, other land", 1] == results["unet", 1], "the land has a say"


def change_land(source: Path, target: Path) -> None:
    """Copy a history file and put other numbers where the mask says land."""
    shutil.copy(source, target)
    with netCDF4.Dataset(target, "a") as dataset:
        dataset.set_auto_maskandscale(False)
        is_land = dataset["umask"][:] == 0
        assert is_land.any()
        for number, name in enumerate(("sst_h", "sss_h", "aice_h")):
            values = dataset[name][:]
            values[:, is_land] = 0.25 + number
            dataset[name][:] = values


def exported_hash(folder: Path) -> str:
    from mpitrain.models.files.torchscript import load_and_run_code

    return weights_sha256(named_weights(load_and_run_code(folder / "model.pt")))
