"""`mpitrain data inspect` and `generate`, through the command tree, and once as users type them."""

import json

import netCDF4
import numpy as np
import pytest
from conftest import launch
from field_files import write_xy

from mpitrain.cli.main import main
from mpitrain.datatools.inspect import inspect_data
from mpitrain.datatools.maps import draw_maps

PNG = b"\x89PNG\r\n\x1a\n"


def test_years_of_files_are_one_series_cut_in_files(tmp_path, capsys):
    size = ["--latitudes", "20", "--longitudes", "24"]
    parts = ["--files", "3", "--times", "2", "--chunks", "1,10,24", "--compress", "4"]
    assert main(["data", "generate", str(tmp_path / "part.nc"), *size, *parts]) == 0
    assert main(["data", "generate", str(tmp_path / "whole.nc"), *size, "--times", "6"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    names = [f"part_{number:04d}.nc" for number in (1, 2, 3)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names, "whole.nc"]
    with netCDF4.Dataset(tmp_path / "whole.nc") as whole:
        assert whole["sst_h"].chunking() == "contiguous"
        for number, name in enumerate(names):
            with netCDF4.Dataset(tmp_path / name) as part:
                assert part["sst_h"].chunking() == [1, 10, 24]
                assert part["sst_h"].filters()["complevel"] == 4
                for variable in ("time", "aice_h", "sst_h"):
                    expected = whole[variable][2 * number : 2 * number + 2]
                    np.testing.assert_array_equal(part[variable][:].filled(), expected.filled())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--files", "0"], "--files 0: give 1 or more"),
        (["--chunks", "1,2"], "--chunks 1,2: give times, rows and columns"),
        (["--chunks", "2,10,10"], "do not fit"),
        (["--compress", "10"], "compress=10"),
    ],
)
def test_wrong_flags_are_one_line_and_write_nothing(tmp_path, capsys, flags, words):
    assert main(["data", "generate", str(tmp_path / "x.nc"), *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert not any(tmp_path.iterdir())


def test_what_is_in_a_file_and_what_would_be_selected(small_history, tmp_path):
    shown = launch(
        ["-m", "mpitrain", "data", "inspect", "--full", "--maps", "maps", str(small_history), "domain.pole=south"],
        cwd=tmp_path,
    )
    assert shown.returncode == 0, shown.stderr
    (aice,) = [line for line in shown.stdout.splitlines() if line.startswith("aice_h")]
    assert "time=1, nj=48, ni=72" in aice
    with netCDF4.Dataset(small_history) as dataset:
        values = dataset["aice_h"][:]
        latitude, mask = dataset["ULAT"][:], dataset["umask"][:]
        assert f"{values.mean(dtype='f8'):.6g}" in aice
        assert f"{100 * np.ma.getmaskarray(values).mean():.1f} %" in aice
        selected = int(((mask == 1) & (latitude < -40) & (values.filled(0)[0] > 0)).sum())
    assert f"selected samples: {selected}\n" in shown.stdout
    assert "grid: 48 rows x 72 columns" in shown.stdout
    maps = sorted((tmp_path / "maps").iterdir())
    assert len(maps) == 8
    assert all(path.read_bytes().startswith(PNG) for path in maps)


def test_json_and_a_selection_that_fails(tmp_path, capsys):
    path = str(write_xy(tmp_path / "f.nc"))
    assert main(["data", "inspect", path, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in content["variables"]] == ["x", "y"]
    assert content["variables"][0]["maximum"] == 59
    assert "no variable 'Tair_h' (of a CICE history" in content["selection"]["why"]
    assert main(["data", "inspect", path, "--maps", str(tmp_path / "maps")]) == 2
    assert main(["data", "inspect"]) == 2
    assert main(["data", "inspect", str(tmp_path / "none.nc")]) == 2
    assert all(line.startswith("mpitrain: error: ") for line in capsys.readouterr().err.splitlines())


def test_what_is_not_selected_is_pale_on_the_map(small_history, tmp_path):
    import matplotlib.image

    from mpitrain.config import load_run_config

    def colours(*settings):
        config = load_run_config(
            None, [f"data.data_path={small_history}", "variables.input_variables=[sst_h]", *settings]
        ).config
        (path,) = [path for path in draw_maps(inspect_data(config), tmp_path) if path.stem == "aice_h"]
        return matplotlib.image.imread(path)[..., :3].mean()

    # Pale is nearer to white; the titles' words differ by far less.
    assert colours("domain.mask=aice_h > 0.5", "domain.mask_mode=ocean") > colours("domain.mask_mode=ocean") + 0.05


def test_the_limit_acts_before_incomplete_samples_are_dropped_as_in_a_run(tmp_path, capsys):
    x = np.arange(4 * 5 * 6, dtype=np.float64).reshape(4, 5, 6)
    y = np.where(x % 3 == 0, np.nan, x)
    path = write_xy(tmp_path / "third_missing.nc", x, y)
    settings = [str(path), "variables.input_variables=[x]", "variables.output_variables=[y]",
                "domain.mask_mode=all", "data.max_patterns=30"]  # fmt: skip
    assert main(["data", "inspect", "--json", *settings]) == 0
    inspected = json.loads(capsys.readouterr().out)["selection"]
    done = launch(["-m", "mpitrain", "data", "stats", "--json", *settings], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    counted = json.loads(done.stdout)["samples"]
    assert (counted["selected"], counted["kept"]) == (120, 30)
    assert inspected["kept_samples"] == counted["valid"] < 30
