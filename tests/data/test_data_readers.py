"""Readers: what is a measurement in a stored number, and what each format refuses."""

import os
import pickle
import zipfile

import h5py
import netCDF4
import numpy as np
import pytest
import torch
from field_files import ramp, write_netcdf, write_xy

from mpitrain.data.files.decoding import decode, read
from mpitrain.data.files.variable import VariableInfo
from mpitrain.data.formats.open import open_field_file
from mpitrain.errors import DataError

NAN = np.nan


def decoded(stored, **attributes):
    stored = np.asarray(stored)
    return decode(stored, VariableInfo("v", ("x",), stored.shape, stored.dtype.str, attributes))


@pytest.mark.parametrize(
    ("stored", "attributes", "expected"),
    [
        (np.array([1, -9, 3], "i2"), {"_FillValue": -9, "scale_factor": 0.5, "add_offset": 10.0}, [10.5, NAN, 11.5]),
        (np.array([1.5, 1e30, -2e30, np.inf, NAN], "f4"), {"_FillValue": 1e30}, [1.5, NAN, NAN, NAN, NAN]),
        (np.array([1.1, 2], "f4"), {"missing_value": 1.1}, [NAN, 2]),
        (np.array([5, 6, 7], "i4"), {"missing_value": (5, 7)}, [NAN, 6, NAN]),
        (np.array([-1, 0, 100, 101], "i2"), {"valid_range": (0, 100), "scale_factor": 0.1}, [NAN, 0, 10, NAN]),
        (np.array([-1, 0, 100, 101], "i2"), {"valid_range": (0.0, 10.0), "scale_factor": 0.1}, [NAN, 0, 10, NAN]),
        (np.array([-1, 0, 5], "f4"), {"valid_min": 0.0, "valid_max": 4.0}, [NAN, 0, NAN]),
        (np.array([-1, 0, 100, 101], "i2"), {"valid_min": 0, "valid_max": 10.0, "scale_factor": 0.1},
         [NAN, 0, 10, NAN]),
        (np.array([-101, -100, 0, 1], "i2"), {"valid_min": -10.0, "valid_max": 0, "scale_factor": 0.1},
         [NAN, -10, 0, NAN]),
        (np.array([1, -1, -2], "i1"), {"_Unsigned": "true", "_FillValue": -1}, [1, NAN, 254]),
        (np.array([1, 65535], "u2"), {"_FillValue": 65535}, [1, NAN]),
        (np.array([1, 2], ">f4"), {}, [1, 2]),
    ],
    ids=["packed", "1e30", "marker rounded", "several markers", "packed range", "unpacked range", "limits",
         "unpacked maximum", "unpacked minimum", "unsigned", "u2", "big-endian"],
)  # fmt: skip
def test_what_is_a_measurement(stored, attributes, expected):
    found = decoded(stored, **attributes)
    assert found.dtype.isnative
    np.testing.assert_allclose(found.astype("f8"), expected, rtol=1e-15)


def test_nothing_is_rounded_before_the_caller_casts():
    assert decoded(np.array([1 + 2**-50], "f8"))[0] == 1 + 2**-50
    assert decoded(np.array([16777217], "i4"))[0] == 16777217
    assert decoded(np.array([3], "i2"), scale_factor=0.1).tolist() == [3 * 0.1]
    stored = np.array([1.0, 1e30], "f4")
    decoded(stored, _FillValue=1e30)
    assert stored[1] == np.float32(1e30), "the caller's array was changed"


def test_netcdf_knows_the_default_fill_value_of_integers(tmp_path):
    path = write_netcdf(tmp_path / "f.nc", {"v": (("x",), np.array([1, -2147483647], "i4"))})
    found = read(open_field_file(path), "v", (slice(None),))
    np.testing.assert_array_equal(found, [1, NAN])


def test_groups_chunks_and_attributes(tmp_path):
    path = write_netcdf(
        tmp_path / "f.nc", {"ice/thin/hi": (("nj", "ni"), ramp(shape=(4, 5)))}, chunks={"hi": (2, 5)}, hi={"units": "m"}
    )
    for suffix in (".nc", ".h5"):
        path = path.rename(path.with_suffix(suffix))
        opened = open_field_file(path)
        info = opened.variables["ice/thin/hi"]
        assert (info.dimensions, info.shape, info.chunk_shape, info.units) == (("nj", "ni"), (4, 5), (2, 5), "m")
        assert read(opened, "ice/thin/hi", (slice(1, 2), slice(None))).tolist() == [[5, 6, 7, 8, 9]]
        pickle.loads(pickle.dumps(info))
        opened.close()
    assert os.environ["HDF5_USE_FILE_LOCKING"] == "FALSE"


@pytest.mark.parametrize("suffix", [".h5", ".nc"])
def test_what_leads_out_of_an_hdf5_file_is_never_read(tmp_path, suffix):
    secret = tmp_path / "secret.bin"
    secret.write_bytes(np.arange(6.0).tobytes())
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["x"] = np.arange(6.0)
    path = tmp_path / f"f{suffix}"
    with h5py.File(path, "w") as file:
        file["inside"] = np.arange(6.0)
        file["soft"] = h5py.SoftLink("/inside")
        file["out"] = h5py.ExternalLink("other.h5", "/x")
        file["soft_out"] = h5py.SoftLink("/out")
        file.create_dataset("raw", (6,), "f8", external=[(str(secret), 0, 48)])
        layout = h5py.VirtualLayout((6,), "f8")
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "x", (6,))
        file.create_virtual_dataset("virtual", layout)
        file["again/round"] = h5py.SoftLink("/again")
    if suffix == ".nc":
        # The library itself refuses such links; storage elsewhere it would read.
        with h5py.File(path, "a") as file:
            for name in ("out", "soft_out", "virtual", "again", "soft"):
                del file[name]
    opened = open_field_file(path)
    assert "external storage" in opened.refused["raw"]
    assert "raw" not in opened.variables
    assert read(opened, "inside", (slice(2, 3),)).tolist() == [2]
    if suffix == ".h5":
        assert set(opened.variables) == {"inside", "soft"}
        assert set(opened.refused) == {"out", "soft_out", "raw", "virtual", "again/round"}
        assert read(opened, "soft", (slice(2, 3),)).tolist() == [2]


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_pt_file_with_code_inside_is_not_opened(tmp_path):
    torch.save({"inputs": Evil(tmp_path / "made")}, tmp_path / "f.pt")
    with pytest.raises(DataError, match=r"f\.pt: holds objects other than tensors, which could run code") as caught:
        open_field_file(tmp_path / "f.pt")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "made").exists()


def test_a_compressed_pt_file_is_not_opened(tmp_path):
    """Its numbers may be a thousand times larger than the file."""
    torch.save({"inputs": torch.zeros(4096)}, tmp_path / "stored.pt")
    with zipfile.ZipFile(tmp_path / "stored.pt") as stored, zipfile.ZipFile(tmp_path / "f.pt", "w") as packed:
        for part in stored.infolist():
            packed.writestr(part.filename, stored.read(part), zipfile.ZIP_DEFLATED)
    with pytest.raises(DataError, match=r"f\.pt: holds compressed numbers, which torch never writes; save it again"):
        open_field_file(tmp_path / "f.pt")


def test_a_pt_file_of_the_time_before_archives_is_opened(tmp_path):
    torch.save({"inputs": torch.arange(3.0)}, tmp_path / "f.pt", _use_new_zipfile_serialization=False)
    assert read(open_field_file(tmp_path / "f.pt"), "inputs", (slice(0, 3),)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("content", [{"inputs": [1.0, 2.0]}, torch.zeros(3), {}], ids=["a list", "no dict", "empty"])
def test_a_pt_file_holds_a_dict_of_tensors(tmp_path, content):
    torch.save(content, tmp_path / "f.pt")
    with pytest.raises(DataError, match=r"f\.pt: holds no dict of tensors"):
        open_field_file(tmp_path / "f.pt")


def test_a_pt_file_of_tensors(tmp_path):
    torch.save({"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)}, tmp_path / "f.pt")
    opened = open_field_file(tmp_path / "f.pt")
    assert read(opened, "a", (slice(1, 2), slice(None))).tolist() == [[3, 4, 5]]
    assert read(opened, "b", (slice(None),)).tolist() == [1, 1]


@pytest.mark.parametrize("name", ["f.nc", "f.h5", "f.npz", "f.pt", "f.dat", "classic.nc"])
@pytest.mark.parametrize("cut", [0.0, 0.6])
def test_a_file_cut_short_is_one_line(tmp_path, name, cut):
    path = tmp_path / name
    values = np.random.default_rng(0).normal(size=(1, 50, 60)).astype("f4")
    if name == "f.npz":
        np.savez(path, x=values)
    elif name == "f.pt":
        torch.save({"x": torch.from_numpy(values)}, path)
    elif name == "classic.nc":
        with netCDF4.Dataset(str(path), "w", format="NETCDF3_CLASSIC") as dataset:
            dataset.createDimension("x", 3000)
            dataset.createVariable("x", "f4", ("x",))[:] = values.reshape(-1)
    else:
        write_xy(path, values, values)
    content = path.read_bytes()
    path.write_bytes(content[: int(cut * len(content))])

    def read_it():
        file = open_field_file(path)
        read(file, "x", (slice(None),) * len(file.variables["x"].shape))

    with pytest.raises(DataError, match=rf"{name}: ") as caught:
        read_it()
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_one_without_permission(tmp_path):
    with pytest.raises(DataError, match=r"none\.nc: no such file"):
        open_field_file(tmp_path / "none.nc")
    (tmp_path / "f.txt").write_text("plain text")
    with pytest.raises(DataError, match=r"f\.txt: neither NetCDF nor HDF5"):
        open_field_file(tmp_path / "f.txt")
