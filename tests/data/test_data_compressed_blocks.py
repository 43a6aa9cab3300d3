"""Compressed blocks, decompressed by the package itself: the bits, the errors and the memory of the library's way."""

import sys
import zlib
from types import SimpleNamespace

import h5py
import netCDF4
import numpy as np
import pytest

from mpitrain.data.files import blocks
from mpitrain.data.formats.open import open_field_file
from mpitrain.errors import DataError

SHAPE, CHUNKS = (3, 130, 170), (1, 100, 90)  # no multiple of the blocks
EVERYTHING = (slice(None),) * 3
PARTS = [EVERYTHING, (), (slice(1, 2),), (slice(1, 2), slice(0, 100), slice(0, 90)),
         (slice(0, 3), slice(95, 130), slice(7, 8)), (slice(2, 2), slice(None), slice(None))]  # fmt: skip
DTYPES = ["i1", "u1", "<i2", ">i2", "<u2", "<i4", ">i4", "<u4", "<i8", ">i8", "<f4", ">f4", "<f8", ">f8", "<f2"]
FILTERS = {
    "none": {},
    "deflate": {"compression": 1},
    "shuffle": {"shuffle": True},
    "shuffle, deflate": {"compression": 4, "shuffle": True},
    "checked": {"compression": 4, "shuffle": True, "fletcher32": True},
    "another": {"compression": "lzf", "shuffle": True},
}


def numbers(dtype):
    bits = np.random.default_rng(3).integers(0, 7, (*SHAPE, np.dtype(dtype).itemsize), dtype=np.uint8)
    return bits.view(dtype)[..., 0]


@pytest.fixture(params=["deflate", "zlib"])
def way(request, monkeypatch):
    """What unpacks: libdeflate, or zlib where its package is missing."""
    monkeypatch.setattr(blocks, "SMALLEST_BLOCK_BYTES", 1)
    if request.param == "zlib":
        monkeypatch.setitem(sys.modules, "deflate", None)


def is_direct(file, name):
    """Whether the package itself decompresses a variable's blocks; it must have been read."""
    return file._values._blocks.get(name) is not None


@pytest.mark.parametrize("suffix", [".h5", ".nc"])
def test_same_bits_as_the_library(tmp_path, way, suffix):
    path = tmp_path / f"f{suffix}"
    with h5py.File(path, "w") as file:
        for dtype in DTYPES:
            for filters, options in FILTERS.items():
                file.create_dataset(f"{dtype}, {filters}", data=numbers(dtype), chunks=CHUNKS, **options)
    opened, count = open_field_file(path), 0
    with h5py.File(path, "r", locking=False) as file:
        for name in opened.variables:
            for part in PARTS:
                found, expected = opened.read_stored(name, part), file[name][part]
                assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
                assert found.tobytes() == expected.tobytes(), (name, part)
            assert is_direct(opened, name) == name.endswith(("deflate", "checked"))
            count += is_direct(opened, name)
    assert count >= 3 * 14
    opened.close()


def test_blocks_never_written_and_blocks_without_a_filter(tmp_path, way):
    path, values = tmp_path / "f.h5", numbers("<f4")
    with h5py.File(path, "w") as file:
        for name, fill in (("a", -9.5), ("b", None)):
            data = file.create_dataset(name, SHAPE, "<f4", chunks=CHUNKS, shuffle=True, compression=1, fillvalue=fill)
            data[0, :100, :90] = values[0, :100, :90]
            plain = np.ascontiguousarray(values[1, :100, :90])
            shuffled = plain.view(np.uint8).reshape(-1, 4).T.tobytes()
            data.id.write_direct_chunk((1, 0, 0), plain.tobytes(), filter_mask=3)
            data.id.write_direct_chunk((2, 0, 0), shuffled, filter_mask=2)
            data.id.write_direct_chunk((2, 0, 90), zlib.compress(plain.tobytes()), filter_mask=1)
    opened = open_field_file(path)
    with h5py.File(path, "r", locking=False) as file:
        for name in "ab":
            for part in PARTS:
                assert opened.read_stored(name, part).tobytes() == file[name][part].tobytes()
            assert is_direct(opened, name)
        np.testing.assert_array_equal(opened.read_stored("a", EVERYTHING)[1, :100, :90], values[1, :100, :90])
        assert opened.read_stored("a", EVERYTHING)[0, 120, 0] == -9.5
    opened.close()


def test_a_variable_that_grows_in_a_group_is_read_directly(tmp_path, way):
    path, values = tmp_path / "f.nc", numbers("<i2")
    with netCDF4.Dataset(str(path), "w") as file:
        for name, size in zip("tyx", (None, *SHAPE[1:]), strict=True):
            file.createDimension(name, size)
        group = file.createGroup("ocean")
        given = {"chunksizes": CHUNKS, "compression": "zlib", "complevel": 1, "fill_value": -1}
        long, short = (group.createVariable(name, "i2", ("t", "y", "x"), **given) for name in ("long", "short"))
        long[:], short[:1] = values, values[:1]
    opened = open_field_file(path)
    assert opened.read_stored("ocean/long", EVERYTHING).tobytes() == values.tobytes()
    assert is_direct(opened, "ocean/long")
    assert (opened.read_stored("ocean/short", EVERYTHING)[1:] == -1).all(), "shorter than its dimension"
    opened.close()


def damaged(kind, packed):
    if kind == "cut off":
        return packed[: len(packed) // 2]
    if kind == "a flipped bit":
        return packed[:100] + bytes([packed[100] ^ 16]) + packed[101:]
    if kind == "a wrong checksum":
        return packed[:-1] + bytes([packed[-1] ^ 1])
    if kind == "too short":
        return zlib.compress(zlib.decompress(packed)[:-4])
    return zlib.compress(zlib.decompress(packed) + bytes(4))


@pytest.mark.parametrize("kind", ["cut off", "a flipped bit", "a wrong checksum", "too short", "too long"])
@pytest.mark.parametrize("suffix", [".h5", ".nc"])
def test_a_damaged_block_is_one_line(tmp_path, way, kind, suffix):
    path = tmp_path / f"f{suffix}"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("a", data=numbers("<f4"), chunks=CHUNKS, shuffle=True, compression=1)
        mask, packed = data.id.read_direct_chunk((1, 0, 0))
        data.id.write_direct_chunk((1, 0, 0), damaged(kind, packed), filter_mask=mask)
    opened = open_field_file(path)
    opened.read_stored("a", (slice(0, 1), slice(None), slice(None)))
    assert is_direct(opened, "a")
    with pytest.raises(DataError, match=rf"^{path}: variable 'a' cannot be read \(.*\); is the file complete\?$"):
        opened.read_stored("a", EVERYTHING)
    opened.close()


def test_a_block_that_takes_more_room_than_it_can_need_is_left_to_the_library(tmp_path, way):
    with h5py.File(tmp_path / "f.h5", "w") as file:
        data = file.create_dataset("a", data=numbers("<f4"), chunks=CHUNKS, compression=1)
        _, packed = data.id.read_direct_chunk((1, 0, 0))
        data.id.write_direct_chunk((1, 0, 0), packed + bytes(2**20))
    opened = open_field_file(tmp_path / "f.h5")
    assert opened.read_stored("a", EVERYTHING).tobytes() == numbers("<f4").tobytes()
    assert is_direct(opened, "a")
    opened.close()


def test_a_block_of_the_users_before_the_file(tmp_path, way):
    """What the library counts from is then not the file's beginning."""
    with h5py.File(tmp_path / "f.h5", "w", userblock_size=512) as file:
        file.create_dataset("a", data=numbers("<f4"), chunks=CHUNKS, compression=1)
    opened = open_field_file(tmp_path / "f.h5")
    assert opened.read_stored("a", EVERYTHING).tobytes() == numbers("<f4").tobytes()
    opened.close()


@pytest.mark.parametrize("item_bytes", [1, 2, 4, 8])
def test_bytes_are_put_together_by_the_size_of_a_number(item_bytes):
    values = np.arange(24 * item_bytes, dtype=np.uint8)
    found = np.empty(24, f"u{item_bytes}")
    blocks.unshuffle(values.reshape(-1, item_bytes).T.tobytes(), found)
    assert found.view(np.uint8).tolist() == values.tolist()


def test_a_shuffle_of_other_items_than_the_numbers_is_the_librarys(tmp_path, way):
    """The filter's own size of an item is what counts, and need not be that of the type."""
    values, path = numbers("<f4"), tmp_path / "f.h5"
    with h5py.File(path, "w") as file:
        steps = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        steps.set_chunk(CHUNKS)
        steps.set_filter(h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FLAG_OPTIONAL, (2,))
        steps.set_deflate(1)
        space = h5py.h5s.create_simple(SHAPE)
        h5py.h5d.create(file.id, b"a", h5py.h5t.py_create(np.dtype("<f4")), space, steps)
        file["a"][...] = values
        stored = file["a"].id.get_create_plist().get_filter(0)[2]
    opened = open_field_file(path)
    assert opened.read_stored("a", EVERYTHING).tobytes() == values.tobytes()
    assert is_direct(opened, "a") == (stored == (4,)), "the library sets the size of the type itself"
    opened.close()


@pytest.mark.parametrize(("item_bytes", "is_undone_here"), [((4,), True), ((2,), False), ((8,), False), ((), False)])
def test_a_files_own_size_of_shuffled_items_is_compared_with_the_types(item_bytes, is_undone_here):
    """The library sets the type's size when it writes; other writers may not, and the values would be wrong."""
    codes = {0: (h5py.h5z.FILTER_SHUFFLE, 1, item_bytes), 1: (h5py.h5z.FILTER_DEFLATE, 1, (4,))}
    steps = SimpleNamespace(get_filter=codes.get, get_nfilters=lambda: len(codes))
    dataset = SimpleNamespace(dtype=np.dtype("<f4"), id=SimpleNamespace(get_create_plist=lambda: steps))
    assert bool(blocks._filters_of(dataset)) == is_undone_here


@pytest.mark.parametrize("num_bytes", [1, 2, 7, 1000, 3 * 2**21 + 1])
def test_the_librarys_own_checksum_is_found(tmp_path, num_bytes):
    values = np.random.default_rng(1).integers(0, 256, num_bytes, dtype=np.uint8)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        data = file.create_dataset("a", data=values, chunks=(num_bytes,), fletcher32=True)
        _, block = data.id.read_direct_chunk((0,))
    assert blocks.check_fletcher32(block) == values.tobytes()
    with pytest.raises(blocks.DamagedBlockError):
        blocks.check_fletcher32(bytes([block[0] ^ 1]) + block[1:])
