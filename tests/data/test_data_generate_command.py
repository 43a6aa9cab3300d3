"""`mpitrain data generate` as users type it."""

import pytest
from conftest import launch

from mpitrain.synthetic.history import read_noise_mse

pytestmark = pytest.mark.ranks


def test_a_file_of_the_asked_shape_or_one_line(tmp_path):
    import netCDF4

    made = launch(["-m", "mpitrain", "data", "generate", "x.nc", "--latitudes", "40", "--times", "2"], cwd=tmp_path)
    assert made.returncode == 0
    assert "x.nc: " in made.stdout
    with netCDF4.Dataset(str(tmp_path / "x.nc")) as dataset:
        assert dataset["aice_h"].shape == (2, 40, 240)
    assert read_noise_mse(tmp_path / "x.nc", "north") is not None
    refused = launch(["-m", "mpitrain", "data", "generate", "x.nc", "--seed", "-4"], cwd=tmp_path)
    assert (refused.returncode, len(refused.our_lines)) == (2, 1)
