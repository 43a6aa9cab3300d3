"""Conversion to tables: the same samples, on any number of ranks, and nothing left where it fails."""

import resource

import h5py
import numpy as np
import pytest
from field_files import config_of, read_all
from played_ranks import on_played_ranks, played_ranks_of
from streaming_cases import write_numbers

from mpitrain.cli.main import main
from mpitrain.data.dataset.exchange import open_source_on_root
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.datatools import convert as conversion
from mpitrain.datatools import table_writers
from mpitrain.datatools.convert import convert
from mpitrain.errors import DataError, OutputError


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Files of a few kB in tens of chunks and blocks."""
    monkeypatch.setattr(
        conversion, "open_source_on_root", lambda config, ranks: open_source_on_root(config, ranks, 800)
    )
    monkeypatch.setattr(table_writers, "BLOCK_ROWS", 500)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("convert") / "xy.nc", missing=(3, 1000))


def converted(path, output, *settings, num_ranks=1, **options):
    config = config_of(path, *settings)
    return on_played_ranks(num_ranks, lambda c: convert(selection_of(config), output, played_ranks_of(c), **options))[0]


def table(files):
    return read_all(open_source(selection_of(config_of(files))))


@pytest.mark.parametrize("num_ranks", [1, 3])
@pytest.mark.parametrize("name", ["x.npz", "x.h5", "folder"])
@pytest.mark.parametrize("settings", [(), ("data.max_patterns=900", "domain.mask=x > 100")])
def test_the_same_samples_in_the_same_order(tmp_path, path, name, num_ranks, settings):
    done = converted(path, tmp_path / name, *settings, num_ranks=num_ranks, part_bytes=8000)
    samples = read_all(open_source(selection_of(config_of(path, *settings))))
    if settings:
        source = open_source(selection_of(config_of(path, *settings)))
        samples = samples.take(np.flatnonzero(source.keeps(np.arange(len(samples)), len(samples))))
    files = str(tmp_path / name / "*.h5") if name == "folder" else str(tmp_path / name)
    found = table(files)
    np.testing.assert_array_equal(found.inputs, samples.inputs)
    np.testing.assert_array_equal(found.targets, samples.targets)
    assert done.num_samples == len(found) == (900 if settings else 2880)
    assert (len(done.files) > 2) == (name == "folder")
    assert sorted(tmp_path.iterdir()) == [tmp_path / name]


def test_blocks_of_an_hdf5_file(tmp_path, path):
    converted(path, tmp_path / "x.h5", gzip=4)
    with h5py.File(tmp_path / "x.h5") as file:
        assert file["inputs"].shape == (2880, 1)
        assert file["inputs"].chunks == (500, 1)
        assert file["inputs"].compression_opts == 4
        assert list(file["targets"].attrs["names"]) == ["y"]


def test_fields(tmp_path, path):
    converted(path, tmp_path / "x.h5", "data.samples=fields", num_ranks=2)
    samples = read_all(open_source(selection_of(config_of(path, "data.samples=fields"))))
    found = table(tmp_path / "x.h5")
    np.testing.assert_array_equal(found.inputs, samples.inputs)
    np.testing.assert_array_equal(found.weights, samples.weights)


@pytest.mark.parametrize(
    ("name", "most_bytes"), [("x.npz", 9000), ("x.h5", 1000), ("x.h5", 80_000), ("folder", 80_000)]
)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_full_disk_leaves_nothing(tmp_path, path, name, most_bytes, num_ranks):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, limits[1]))  # the kernel's words differ from ENOSPC, no more
    try:
        with pytest.raises(
            OutputError, match=rf"{name}: cannot be written \(.*give a writable path on a disk with enough space"
        ):
            converted(path, tmp_path / name, num_ranks=num_ranks)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_a_target_in_the_way_and_an_empty_selection(tmp_path, path, capsys):
    (tmp_path / "x.h5").write_text("mine")
    with pytest.raises(OutputError, match=r"x\.h5: exists already"):
        converted(path, tmp_path / "x.h5", num_ranks=2)
    for name in ("y.npz", "y.h5", "folder"):
        with pytest.raises(DataError, match="no point is selected"):
            converted(path, tmp_path / name, "domain.mask=x < 0")
    assert [one.name for one in tmp_path.iterdir()] == ["x.h5"]
    assert (tmp_path / "x.h5").read_text() == "mine"
    assert main(["data", "convert", str(path), "--output", "z.h5", "--gzip", "11"]) == 2
    assert "--gzip 11: give 0 (none) to 9" in capsys.readouterr().err
