"""Formats of data files: by name's end, by first bytes, by `data.reader`, and of a user by the name of a function."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mpitrain.config import load_run_config
from mpitrain.config.data import READERS
from mpitrain.data.formats.open import format_of
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.errors import ConfigError, DataError

OF_USERS = Path(__file__).parents[1] / "components"
NAMES = ("variables.input_variables=[sst, wind]", "variables.output_variables=[flux]")


@pytest.fixture(autouse=True)
def _modules_of_users(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(OF_USERS)
    yield
    sys.modules.pop("my_reader", None)


def write_fields(path: Path) -> dict[str, np.ndarray]:
    """Write three fields (2, 3, 4) as the made-up text format has them, and return them; one value is missing."""
    fields = {name: np.arange(24.0).reshape(2, 3, 4) + number for number, name in enumerate(("sst", "wind", "flux"))}
    fields["wind"][0, 0, 0] = -999.0
    lines = [f"{name} K 2 3 4\n{' '.join(map(str, values.ravel()))}\n" for name, values in fields.items()]
    path.write_text("".join(lines))
    return fields


def config_of(path: Path, reader: str, *more: str):
    return load_run_config(None, [f"data.data_path={path}", f"data.reader={reader}", *NAMES, *more]).config


def test_a_format_of_a_user_is_read_like_any_other(tmp_path: Path) -> None:
    fields = write_fields(tmp_path / "a.fields")
    source = open_source(selection_of(config_of(tmp_path / "a.fields", "my_reader:read_fields")))
    samples = source.read_all()
    assert source.units["sst"] == "K"
    assert np.array_equal(samples.inputs[:, 0], fields["sst"].ravel())
    assert np.array_equal(samples.targets[:, 0], fields["flux"].ravel())
    assert np.flatnonzero(np.isnan(samples.inputs[:, 1])).tolist() == [0]
    other = config_of(tmp_path / "a.fields", "{type: my_reader:read_fields, options: {missing: 5}}")
    inputs = open_source(selection_of(other)).read_all().inputs
    assert np.argwhere(np.isnan(inputs)).tolist() == [[4, 1], [5, 0]]


@pytest.mark.parametrize(
    ("reader", "line"),
    [
        (
            "my_reader:read_nothing",
            "data.reader=my_reader:read_nothing cannot read it (ValueError: line 3 has no numbers)",
        ),
        ("builtins:str", "cannot read it (TypeError: returned str; return a mapping of names to arrays)"),
    ],
)
def test_what_a_reader_lacks_is_one_line_that_names_the_file(tmp_path: Path, reader: str, line: str) -> None:
    write_fields(tmp_path / "a.fields")
    with pytest.raises(DataError) as refused:
        open_source(selection_of(config_of(tmp_path / "a.fields", reader)))
    assert (
        str(refused.value) == f"{tmp_path / 'a.fields'}: {line}" if "str" not in reader else line in str(refused.value)
    )


def test_a_wrong_option_names_the_reader_s_own() -> None:
    config = load_run_config(None, ["data.reader={type: my_reader:read_fields, options: {mising: 3}}"]).config
    with pytest.raises(ConfigError, match="has no option 'mising'; did you mean 'missing'"):
        config.check_code()


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("a.h5", b"", "hdf5"),
        ("a.NC", b"", "netcdf"),
        ("a.out", b"CDF\x01", "netcdf"),
        ("a.out", b"\x89HDF\r\n\x1a\n", "netcdf"),
        ("a.out", b"PK\x03\x04", "npz"),
        ("a.pq", b"", "parquet"),
    ],
)
def test_a_format_is_told_by_its_name_or_its_first_bytes(tmp_path: Path, name: str, content: bytes, found: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert format_of(tmp_path / name).name == found


def test_what_is_of_no_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.out").write_text("1 2 3")
    with pytest.raises(DataError, match=r"by its first bytes; give it one of the suffixes \.nc, .*data\.reader"):
        format_of(tmp_path / "a.out")
    assert set(READERS.table) == {"netcdf", "hdf5", "zarr", "npz", "pt", "csv", "parquet"}


def test_data_reader_wins_over_the_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", inputs=np.ones((3, 2)), targets=np.zeros(3))
    (tmp_path / "a.npz").rename(tmp_path / "a.csv")
    config = load_run_config(None, [f"data.data_path={tmp_path / 'a.csv'}", "data.reader=npz"]).config
    assert open_source(selection_of(config)).read_all().inputs.shape == (3, 2)
