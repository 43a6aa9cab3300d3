"""Collecting inside of a model: one launch on four ranks makes all files and statuses that are looked at here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import netCDF4
import numpy as np
import pytest
from conftest import TIMEOUT_S, find_mpirun, launch
from settings_files import EXAMPLE, compiler_flags, write_settings

from mpitrain.data.random_streams import keyed_words
from mpitrain.datatools.collection import write_collection
from mpitrain.native.toolchain import find_next_to_python

PROGRAMS = Path(__file__).parent / "programs"
STREAM, NUM_CELLS, NUM_STEPS = 0x636F6C6C, 96 * 64, 20
TILES = ("2x1", "1x3", "2x2", "4x1")


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """The folder of all files, and what the program said: statuses by name, in order, and messages."""
    folder = tmp_path_factory.mktemp("collection")
    write_collection(folder)
    write_settings(folder)
    strict = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Werror"]
    compiler = str(find_next_to_python("mpicc"))
    program = [str(PROGRAMS / "checks.c"), "-o", str(folder / "checks")]
    subprocess.run([compiler, *strict, *program, *compiler_flags(folder)], check=True)
    done = subprocess.run(
        [find_mpirun(), "-np", "4", folder / "checks", folder],
        check=True, text=True, stdout=subprocess.PIPE, timeout=TIMEOUT_S,
    )  # fmt: skip
    said: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition(" ")
        said.setdefault(name, []).append(value)
    return folder, said


def values(path: Path, name: str):
    with netCDF4.Dataset(path) as file:
        return np.asarray(file[name][:])


class TestTheFile:
    @pytest.mark.parametrize("tiles", TILES)
    def test_it_is_the_same_on_any_tiles(self, checked, tiles):
        folder, _ = checked
        assert (folder / f"tiles_{tiles}.nc").read_bytes() == (folder / "tiles_1x1.nc").read_bytes()

    @pytest.mark.parametrize("restarted", ["restarted_on_3", "restarted_on_1"])
    def test_it_is_the_same_after_a_restart_on_another_number(self, checked, restarted):
        folder, said = checked
        assert said["read_restart"] == ["0", "0"]
        assert (folder / f"{restarted}.nc").read_bytes() == (folder / "tiles_1x1.nc").read_bytes()

    @pytest.mark.parametrize("name", ["bins", "regions"])
    def test_it_is_the_same_in_any_order_of_calls(self, checked, name):
        folder, _ = checked
        assert (folder / f"{name}_turned.nc").read_bytes() == (folder / f"{name}.nc").read_bytes()

    def test_it_holds_the_samples_with_the_lowest_hashes(self, checked):
        folder, _ = checked
        words = np.concatenate([keyed_words((1, STREAM, step), NUM_CELLS) for step in range(NUM_STEPS)])
        expected = np.sort(np.argsort(words)[:5000])
        step, cell = (values(folder / "tiles_1x1.nc", name) for name in ("step", "cell"))
        assert (step * NUM_CELLS + cell).tolist() == expected.tolist()

    def test_every_sample_has_the_same_chance(self, checked):
        # 63 degrees of freedom: 0.1 % of all choices lie above 103, 0.1 % below 33
        assert 33 < float(checked[1]["chi_square"][0]) < 103

    def test_it_is_a_file_for_training(self, checked):
        folder, _ = checked
        with netCDF4.Dataset(folder / "tiles_1x1.nc") as file:
            assert (file.input_variables, file.output_variables) == ("depth[lev5=:] u[lev2=:] v[lev2=:]", "tendency")
            assert file["depth"].units == "m"
            assert file["depth"].dimensions == ("sample", "lev5")
            assert file["depth"].all_mean.shape == (5,)
            assert set(file["weight"][:]) == {1.0}
            assert file["shown"][:] == [NUM_CELLS * NUM_STEPS]


class TestStatistics:
    def test_they_are_of_all_samples_exactly(self, checked):
        folder, _ = checked
        with netCDF4.Dataset(folder / "all.nc") as file:
            assert file.dimensions["sample"].size == file["shown"][0] == 140000
            for name in ("a", "b", "c"):
                held = file[name][:].data.astype(np.longdouble)
                deviations = held - held.mean()
                std = np.sqrt((deviations**2).mean() - deviations.mean() ** 2)
                assert file[name].all_mean == pytest.approx(float(held.mean()), rel=1e-12)
                assert file[name].all_standard_deviation == pytest.approx(float(std), rel=1e-12)
                assert (file[name].all_minimum, file[name].all_maximum) == (held.min(), held.max())


class TestStrata:
    @pytest.mark.parametrize(("name", "numbers"), [("bins", (143, 715, 142)), ("regions", (334, 333, 333))])
    def test_each_has_its_share_and_its_weight(self, checked, name, numbers):
        folder, _ = checked
        stratum, weight = (values(folder / f"{name}.nc", one) for one in ("stratum", "weight"))
        assert tuple(values(folder / f"{name}.nc", "shown")) == numbers
        assert np.bincount(stratum).tolist() == [20, 20, 20]
        for number, shown in enumerate(numbers):
            assert weight[stratum == number] == pytest.approx(60 / 1000 * shown / 20)
        assert weight.mean() == pytest.approx(1)


def sorted_by_step() -> list[int]:
    """The cells of step 0, then those of step 1 with the two that were added beside them, then the rest."""
    return [*range(20), 1000, 1002, *range(20, 100)]


STATUSES = {
    "not_a_number": 1, "beyond_float": 1, "wrong_inputs": -2, "wrong_targets": -2, "no_regions": -2,
    "no_settings": -1, "wrong_settings": -1, "add_unopened": -6, "write_unopened": -6, "closed": -6,
    "too_large": -3, "other_settings": -5, "no_restart": -4, "same_settings": 0, "read_again": -2,
    "full_disk": -4, "after_full_disk": 0,
    "nothing_shown": 3, "shown_twice": 2, "twice_at_the_border": 2,
}  # fmt: skip


class TestFaults:
    @pytest.mark.parametrize("fault", STATUSES)
    def test_it_is_a_status_and_the_model_runs_on(self, checked, fault):
        assert checked[1][fault] == [str(STATUSES[fault])]

    def test_messages_say_what_to_do(self, checked):
        wrong, full = checked[1]["message"]
        assert "wrong.yaml:6: unit: unknown key; a variable has name, units" in wrong
        assert "few.nc: cannot be written (File too large); free space" in full

    def test_nothing_is_left_of_a_file_that_failed(self, checked):
        assert not list(checked[0].glob("*.partial"))

    def test_a_full_disk_loses_nothing(self, checked):
        folder, _ = checked
        assert values(folder / "few.nc", "cell").tolist() == sorted_by_step()
        with netCDF4.Dataset(folder / "few.nc") as file:
            assert file.samples_left_out == 2

    def test_a_restart_counts_what_was_left_out(self, checked):
        folder, said = checked
        assert said["read_few"] == ["0"]
        assert (folder / "few_again.nc").read_bytes() == (folder / "few.nc").read_bytes()


class TestTraining:
    def test_a_collected_file_trains_as_it_is(self, checked):
        folder, _ = checked
        arguments = ["train", "tiles_2x2.nc", "--epochs", "20", "--output", "run"]
        done = launch(["-m", "mpitrain", *arguments], num_ranks=2, cwd=folder)
        assert done.returncode == 0, done.stderr
        assert "of tiles_2x2.nc" in done.stdout
        record = json.loads((folder / "run" / "statistics.json").read_text())
        assert [one["name"] for one in record["variables"]][-3:] == ["v[lev2=0]", "v[lev2=1]", "tendency"]
        shutil.rmtree(folder / "run")


def test_the_example_runs_as_it_says(tmp_path):
    write_collection(tmp_path)
    for name in ("shallow_water.c", "collect.yaml"):
        shutil.copy(EXAMPLE / name, tmp_path)
    compiler = str(find_next_to_python("mpicc"))
    sources = ["shallow_water.c", "mpitrain_collection.c", "-o", "model"]
    subprocess.run([compiler, "-std=c99", "-O3", *sources, *compiler_flags(tmp_path)], check=True, cwd=tmp_path)
    subprocess.run([find_mpirun(), "-np", "2", "./model", "collect.yaml", "2", "1"], check=True, cwd=tmp_path)
    assert values(tmp_path / "collected.nc", "shown").tolist() == [NUM_CELLS * 60]
    assert os.listdir(tmp_path).count("collected.nc.partial") == 0
