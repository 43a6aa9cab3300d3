"""Uncompressed values that follow one another, read by the system: the bits and the errors of the library's way."""

import h5py
import netCDF4
import numpy as np
import pytest

from mpitrain.data.files.compiled import contiguous
from mpitrain.data.files.open import open_field_file
from mpitrain.errors import DataError

SHAPE = (5, 30, 40)
EVERYTHING = (slice(None),) * 3
IN_ONE_PIECE = [EVERYTHING, (), (slice(1, 3),), (slice(1, 3), slice(None), slice(None)),
                (slice(2, 3), slice(4, 30), slice(0, 40)), (slice(4, 5), slice(7, 8), slice(3, 9)),
                (slice(0, 1), slice(0, 1), slice(39, 40))]  # fmt: skip
IN_PIECES = [(slice(0, 2), slice(1, 3), slice(None)), (slice(None), slice(None), slice(0, 39)),
             (slice(0, 5, 2), slice(None), slice(None)), (slice(2, 2), slice(None), slice(None))]  # fmt: skip
DTYPES = ["i1", "u1", "<i2", ">i2", "<i4", ">u4", "<i8", "<f4", ">f4", "<f8", ">f8"]


def numbers(dtype):
    bits = np.random.default_rng(3).integers(0, 7, (*SHAPE, np.dtype(dtype).itemsize), dtype=np.uint8)
    return bits.view(dtype)[..., 0]


@pytest.fixture(autouse=True)
def _few_bytes_are_enough(monkeypatch):
    monkeypatch.setattr(contiguous, "SMALLEST_PART_BYTES", 1)


@pytest.mark.parametrize("suffix", [".h5", ".nc"])
def test_same_bits_as_the_library(tmp_path, monkeypatch, suffix):
    path, answers = tmp_path / f"f{suffix}", []
    with h5py.File(path, "w") as file:
        for dtype in DTYPES:
            file.create_dataset(dtype, data=numbers(dtype))
        file.create_dataset("never written", SHAPE, "<f4", fillvalue=-9.5)
    read = contiguous.ContiguousValues.read
    monkeypatch.setattr(contiguous.ContiguousValues, "read", lambda *words: answers.append(read(*words)) or answers[-1])
    opened = open_field_file(path)
    with h5py.File(path, "r", locking=False) as file:
        for name in file:
            for part in (*IN_ONE_PIECE, *IN_PIECES):
                del answers[:]
                found, expected = opened.read_stored(name, part), file[name][part]
                assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
                assert found.tobytes() == expected.tobytes(), (name, part)
                is_direct = name != "never written" and part in IN_ONE_PIECE
                assert [one is not None for one in answers] == ([] if name == "never written" else [is_direct])
    opened.close()


def test_a_file_that_is_cut_short_is_one_line(tmp_path):
    path = tmp_path / "f.nc"
    with netCDF4.Dataset(str(path), "w") as file:
        for name, size in zip("tyx", SHAPE, strict=True):
            file.createDimension(name, size)
        file.createVariable("v", "f8", ("t", "y", "x"))[:] = numbers("<f8")
    opened = open_field_file(path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 30_000)
    with pytest.raises(DataError, match=r"f.nc: variable 'v' cannot be read \(.*; is the file complete") as caught:
        opened.read_stored("v", EVERYTHING)
    assert "\n" not in str(caught.value)
