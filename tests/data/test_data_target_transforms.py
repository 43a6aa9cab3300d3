"""`model.output_transforms`: what is learnt in place of a target, and physical units in everything that is written."""

import netCDF4
import numpy as np
import pytest
import torch
from conftest import launch
from field_files import write_netcdf
from user_files import SIGMA, smooth

from mpitrain.config import load_run_config
from mpitrain.config.model import TargetTransform
from mpitrain.data.transforms import outside_domain, restored, transformed
from mpitrain.errors import ConfigError
from mpitrain.models.files.stored_network import load_network
from mpitrain.models.files.torchscript import load_and_run_code
from mpitrain.models.jacobian import input_jacobian

INPUTS = ("a", "b")
NAMES = ("variables.input_variables=[a, b]", "variables.output_variables=[rain, cover, snow]")
TRANSFORMS = "model.output_transforms={rain: log, cover: logit, snow: {power: 0.5}}"


def write_skewed(path, seed=1, spoil=None):
    """Three targets that are linear in a and b, with noise of SIGMA, once they are transformed; in two inputs."""
    rng = np.random.default_rng(seed)
    shape = (6, 20, 30)
    a, b, *noise = (smooth(rng, *shape) for _ in range(5))
    rain = np.exp(a - b + SIGMA * noise[0])
    cover = 1 / (1 + np.exp(-(0.5 * a + b + SIGMA * noise[1])))
    snow = (8 + a + b + SIGMA * noise[2]) ** 2
    if spoil is not None:
        rain[spoil] = -1.0
    fields = {"a": a, "b": b, "rain": rain, "cover": cover, "snow": snow}
    grid = ("time", "nj", "ni")
    return write_netcdf(path, {name: (grid, values.astype("f4")) for name, values in fields.items()})


def last_hash(done):
    return done.stdout.split("SHA-256 ")[-1].split()[0]


@pytest.mark.lab
@pytest.mark.parametrize("network", ["cnn", "unet"])
def test_networks_of_fields_learn_transformed_and_weighted_targets(tmp_path, network, request):
    if network == "unet" and not request.config.getoption("--full"):
        pytest.skip("as cnn; with --full")
    data = write_skewed(tmp_path / "data.nc")
    run = ["-m", "mpitrain", "train", "--data", str(data), *NAMES, TRANSFORMS, "data.samples=fields",
           f"model.name={network}",
           "training.loss_weights={rain: 3, snow: 0.5}", "model.hidden_size=8", "training.global_batch_size=2",
           "optimizer.learning_rate=0.01", "--epochs", "60"]  # fmt: skip
    done = {number: launch([*run, "--output", f"of_{number}"], num_ranks=number, cwd=tmp_path) for number in (1, 3)}
    assert all(one.returncode == 0 for one in done.values()), done[3].stderr
    assert last_hash(done[1]) == last_hash(done[3])
    found = predicted(tmp_path, data, "torch")
    ratio = np.log(found["rain_predicted"] / found["rain"]).std() / np.log(found["rain"]).std()
    assert ratio < 0.4
    assert (found["cover_predicted"] > 0).all()
    assert (found["cover_predicted"] < 1).all()


@pytest.mark.parametrize("transform", [TargetTransform("log"), TargetTransform("logit"),
                                       *(TargetTransform("power", p) for p in (0.5, 2.0, 1 / 3))])  # fmt: skip
def test_the_inverse_and_its_slope_are_those_of_the_transform(transform):
    values = np.linspace(0.1, 0.9, 81)
    learnt = transformed(transform, values)
    back, slopes = restored(transform, learnt)
    np.testing.assert_allclose(back, values, rtol=1e-13)
    step = 1e-6
    differences = (restored(transform, learnt + step)[0] - restored(transform, learnt - step)[0]) / (2 * step)
    np.testing.assert_allclose(slopes, differences, rtol=1e-7)
    assert np.isnan(transformed(transform, np.array([np.nan]))[0])
    assert not outside_domain(transform, np.array([np.nan, 0.5])).any()
    assert outside_domain(transform, np.array([-1.0]))[0]


@pytest.mark.lab
def test_transformed_targets_train_to_their_noise_with_the_same_bits_on_any_number_of_ranks(tmp_path):
    data, later = write_skewed(tmp_path / "data.nc"), write_skewed(tmp_path / "later.nc", seed=2)
    run = ["-m", "mpitrain", "train", "--data", str(data), *NAMES, TRANSFORMS, "--epochs", "25", "model.hidden_size=8"]
    done = {number: launch([*run, "--output", f"of_{number}"], num_ranks=number, cwd=tmp_path) for number in (1, 3)}
    assert all(one.returncode == 0 for one in done.values()), done[3].stderr
    assert last_hash(done[1]) == last_hash(done[3])
    loss = float(done[3].stdout.split("validation ")[-1].split()[0])
    floor = sum(SIGMA**2 / (SIGMA**2 + one) for one in (2, 1.25, 2)) / 3  # in each target's own variance
    assert 0.85 * floor < loss < 1.1 * floor
    found = predicted(tmp_path, later)
    assert np.isclose(np.log(found["rain_predicted"] / found["rain"]).std(), SIGMA, rtol=0.1)
    assert np.isclose((np.sqrt(found["snow_predicted"]) - np.sqrt(found["snow"])).std(), SIGMA, rtol=0.1)
    with netCDF4.Dataset(later) as file:
        assert np.array_equal(found["rain"].reshape(-1), file["rain"][:].data.reshape(-1))
        inputs = torch.from_numpy(np.stack([file[name][:].data.reshape(-1) for name in INPUTS], axis=1))
    check_model_file(tmp_path / "of_3" / "model.pt", inputs, found)
    refused = launch(["-m", "mpitrain", "export", "of_3", "--format", "c", "--output", "of_3.c"], cwd=tmp_path)
    assert (refused.returncode, len(refused.our_lines)) == (2, 1)
    assert "of_3: was trained with model.output_transforms, which --format c does not support" in refused.our_lines[0]


def predicted(folder, data, arithmetic="portable"):
    """What `predict`, in that arithmetic by default, says of `data`: every variable of its file."""
    words = ["-m", "mpitrain", "predict", "of_3", "--data", str(data), "--output", "answers.nc"]
    done = launch(words, num_ranks=2, cwd=folder)
    assert done.returncode == 0, done.stderr
    with netCDF4.Dataset(folder / "answers.nc") as file:
        assert arithmetic in str(file.__dict__)
        return {name: file[name][:].data for name in file.variables}


def check_model_file(path, inputs, found):
    """The file's own code and the network rebuilt from its record answer as the prediction does."""
    outputs, jacobian = input_jacobian(load_network(path).module, inputs)
    scripted = load_and_run_code(path)
    assert torch.equal(scripted(inputs), outputs)
    assert torch.equal(scripted.jac(inputs), jacobian)
    for number, name in enumerate(("rain", "cover", "snow")):
        near = {"rtol": 2e-4, "atol": 1e-5}
        np.testing.assert_allclose(found[f"{name}_predicted"].reshape(-1), outputs[:, number].detach(), **near)
        np.testing.assert_allclose(found[f"d{name}_db"].reshape(-1), jacobian[:, number, 1].detach(), **near)


def test_a_value_without_a_transform_and_a_target_that_is_none_are_one_line(tmp_path):
    data = write_skewed(tmp_path / "data.nc", spoil=np.s_[2:, 3, 4:6])
    run = ["-m", "mpitrain", "train", "--data", str(data), *NAMES]
    refused = launch([*run, TRANSFORMS], num_ranks=2, cwd=tmp_path)
    assert (refused.returncode, len(refused.our_lines)) == (2, 1)
    assert refused.our_lines[0] == (
        f"mpitrain: error: {data}: target 'rain' must be above 0 for model.output_transforms={{rain: log}}; 8 values "
        'of 3600 selected samples are not; exclude them by domain.mask="rain > 0", or use another transform'
    )
    unknown = launch([*run, "model.output_transforms={hail: log}"], cwd=tmp_path)
    assert (unknown.returncode, len(unknown.our_lines)) == (2, 1)
    assert "model.output_transforms: 'hail' is not a target; the targets are rain, cover, snow" in unknown.our_lines[0]


@pytest.mark.parametrize("text", ["{rain: lgo}", "{rain: {power: 0}}", "log", "{rain: {root: 2}}"])
def test_what_is_no_transform_is_one_line(text):
    with pytest.raises(ConfigError, match=r"model.output_transforms.*give a mapping of targets to log, logit or"):
        load_run_config(None, [f"model.output_transforms={text}"])


def test_the_ice_concentration_is_learnt_by_mlp_where_it_is_transformed():
    assert load_run_config(None, ["model.output_transforms={aice_h: logit}"]).config.network.name == "mlp"
    with pytest.raises(ConfigError, match=r"icenet has no such option; remove the key or give model.name=mlp"):
        load_run_config(None, ["model.output_transforms={aice_h: logit}", "model.name=icenet"])
