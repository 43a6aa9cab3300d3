"""Selected samples of history files and of `.npz` files."""

import numpy as np
import pytest
from history_samples import read_samples
from tiny_history import FIELD, write_tiny_history

from mpitrain.data.describe.names import CICE_INPUTS
from mpitrain.data.samples import Samples, first_invalid_feature, valid_rows
from mpitrain.errors import DataError


def test_selected_points_in_file_order(tmp_path):
    samples = read_samples(write_tiny_history(tmp_path / "h.nc"), "north", True)
    assert samples.grid_index.tolist() == [0, 3, 5]
    assert samples.inputs.tolist() == [[100 * c + i for c in range(7)] for i in (0, 3, 5)]
    assert samples.targets.tolist() == [[0.5]] * 3
    assert samples.inputs.dtype == samples.targets.dtype == np.float32
    assert samples.input_names == CICE_INPUTS


@pytest.mark.parametrize(
    ("pole", "is_clean", "selected"), [("south", True, [4]), ("north", False, [0, 1, 3]), ("south", False, [4])]
)
def test_poles_and_uncleaned_points(tmp_path, pole, is_clean, selected):
    assert read_samples(write_tiny_history(tmp_path / "h.nc"), pole, is_clean).grid_index.tolist() == selected


def test_the_grid_is_the_same_at_every_time(tmp_path):
    samples = read_samples(write_tiny_history(tmp_path / "h.nc", num_times=2), "north", True)
    assert samples.grid_index.tolist() == [0, 3, 5, 6, 9, 11]
    assert samples.inputs[:, 0].tolist() == [0, 3, 5, 6, 9, 11]


def test_nothing_selected_names_the_rule(tmp_path):
    no_ice = np.zeros((1, 2, 3), dtype=np.float32)
    path = write_tiny_history(tmp_path / "h.nc", aice_h=(FIELD, no_ice))
    with pytest.raises(
        DataError, match=r"h.nc: no point is selected; the rule is: domain.pole=south, domain.clean_data=true"
    ):
        read_samples(path, "south", True)
    assert len(read_samples(path, "south", False)) == 1


def save_npz(path, **arrays):
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_every_sample_of_an_npz_file_is_selected(tmp_path, shape):
    inputs, targets = np.arange(10.0).reshape(5, 2), np.arange(5.0).reshape(shape)
    samples = read_samples(save_npz(tmp_path / "s.npz", inputs=inputs, targets=targets), "north", True)
    assert samples.inputs.tolist() == inputs.tolist()
    assert samples.targets.tolist() == [[value] for value in range(5)]
    assert samples.grid_index.tolist() == list(range(5))
    assert samples.inputs.dtype == np.float32
    assert samples.input_names == ("inputs[:, 0]", "inputs[:, 1]")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"inputs": np.zeros((3, 2))}, "has no array 'targets'; give inputs"),
        ({"inputs": np.zeros((3, 2)), "targets": np.zeros(4)}, r"inputs \(3, 2\) and targets \(4,\) do not fit"),
        ({"inputs": np.zeros(3), "targets": np.zeros(3)}, "do not fit"),
        ({"inputs": np.zeros((0, 2)), "targets": np.zeros(0)}, "do not fit"),
        ({"inputs": np.full((3, 2), "x"), "targets": np.zeros(3)}, "cannot be read"),
        ({"inputs": np.array([{}] * 3), "targets": np.zeros(3)}, "it holds objects, which could run code"),
    ],
    ids=["no targets", "unequal", "inputs of one axis", "empty", "text", "objects, which could run code"],
)
def test_npz_files_that_do_not_fit(tmp_path, arrays, words):
    with pytest.raises(DataError, match=words):
        read_samples(save_npz(tmp_path / "s.npz", **arrays), "north", True)


@pytest.mark.parametrize("content", [None, b"", b"no archive"])
def test_npz_files_that_are_none(tmp_path, content):
    path = tmp_path / "s.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"s.npz: (no such file|cannot be read)"):
        read_samples(path, "north", True)


def test_an_npz_file_with_a_flipped_byte(tmp_path):
    path = tmp_path / "s.npz"
    np.savez_compressed(path, inputs=np.random.default_rng(0).normal(size=(50, 2)), targets=np.zeros(50))
    content = bytearray(path.read_bytes())
    content[200] ^= 255
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"s.npz: cannot be read"):
        read_samples(path, "north", True)


def samples_with(**changes):
    inputs, targets = np.ones((4, 2), dtype=np.float32), np.ones(4, dtype=np.float32)
    if "target" in changes:
        targets[2] = changes["target"]
    if "input" in changes:
        inputs[2, 1] = changes["input"]
    return Samples(inputs, targets[:, None], np.arange(4), ("a", "b"))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_measurement_is_found(value):
    for samples, name in ((samples_with(input=value), "b"), (samples_with(target=value), "aice_h")):
        assert valid_rows(samples).tolist() == [True, True, False, True]
        assert first_invalid_feature(samples) == name


def test_measurements_are_left_alone():
    samples = samples_with(input=9e30, target=-5e28)
    assert valid_rows(samples).all()
    assert first_invalid_feature(samples) is None
