"""Parts of the library that collects samples: its hash, its exact sums, its settings; and how a run reads its files."""

from __future__ import annotations

import ctypes
import math
import subprocess
from fractions import Fraction
from pathlib import Path

import netCDF4
import numpy as np
import pytest
from conftest import PROJECT
from settings_files import EXAMPLE, settings

from mpitrain.cli.main import main
from mpitrain.config import LoadedConfig, RunConfig
from mpitrain.data.random_streams import keyed_words
from mpitrain.data.selection.settings import with_names_of_file
from mpitrain.datatools.collection import SOURCES, collection_files

PROGRAMS = Path(__file__).parent / "programs"
STREAM = 0x636F6C6C


@pytest.fixture(scope="module", params=["-O2", "-O3 -ffast-math"])
def parts(request, tmp_path_factory):
    """The parts in a library; with a model's flags too, which must change nothing."""
    folder = tmp_path_factory.mktemp("parts")
    library, compiled = folder / "parts.so", folder / "parts.o"
    folders = [f"-I{one}" for one in (PROGRAMS / "without_mpi", SOURCES)]
    strict = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", *request.param.split()]
    subprocess.run(["cc", *strict, *folders, "-fPIC", "-c", PROGRAMS / "parts.c", "-o", compiled], check=True)
    # Linked without -ffast-math, which would set this process to flush tiny numbers.
    subprocess.run(["cc", "-shared", compiled, "-o", library, "-lm"], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.hash_of.restype = ctypes.c_uint64
    loaded.hash_of.argtypes = [ctypes.c_uint64, ctypes.c_int64, ctypes.c_int64]
    return loaded


def statistics(parts, values, adds=32768):
    numbers = np.zeros(4)
    held = np.ascontiguousarray(values, dtype=np.float32)
    pointer = ctypes.POINTER(ctypes.c_float), ctypes.POINTER(ctypes.c_double)
    parts.statistics_of(
        held.ctypes.data_as(pointer[0]), ctypes.c_int64(len(held)), ctypes.c_int64(adds),
        numbers.ctypes.data_as(pointer[1]),
    )  # fmt: skip
    return numbers


def exact_statistics(values):
    exact = [Fraction(float(value)) for value in values]
    mean = sum(exact) / len(exact)
    variance = sum(one * one for one in exact) / len(exact) - mean * mean
    return float(mean), math.sqrt(variance) if variance else 0.0


class TestTheHash:
    @pytest.mark.parametrize(("seed", "step"), [(0, 0), (7, 12345), (2**63 - 1, -3)])
    def test_it_is_the_packages_own(self, parts, seed, step):
        expected = keyed_words((seed, STREAM, step), 50)
        assert [parts.hash_of(seed, step, cell) for cell in range(50)] == expected.tolist()


class TestExactSums:
    @pytest.mark.parametrize(
        "values",
        [
            [0.0],
            [-1.5],
            [1.0, 1e-8, -1.0],
            [3.4028235e38] * 5 + [1e-45],
            [1e-45, -1e-45, 2e-38, -0.0],
            [16777215.0] * 40000,
            np.random.default_rng(1).normal(280, 1e-3, 3000),
            np.random.default_rng(2).lognormal(0, 20, 3000) * np.random.default_rng(3).choice([-1, 1], 3000),
        ],
    )
    def test_mean_and_standard_deviation_are_those_of_rational_numbers(self, parts, values):
        values = np.asarray(values, dtype=np.float32)
        mean, std = exact_statistics(values)
        found = statistics(parts, values)
        assert found[0] == pytest.approx(mean, rel=3e-16, abs=0)
        assert found[1] == pytest.approx(std, rel=1e-15, abs=0)
        assert found[2:].tolist() == [values.min(), values.max()]

    def test_neither_order_nor_grouping_matters(self, parts):
        rng = np.random.default_rng(4)
        values = (rng.normal(0, 1, 5000) * 10.0 ** rng.integers(-30, 30, 5000)).astype(np.float32)
        expected = statistics(parts, values).tobytes()
        for adds in (1, 7, 32768):
            assert statistics(parts, rng.permutation(values), adds).tobytes() == expected


class TestSumsOfBlocks:
    """The same sums in doubles, of many samples at a time."""

    def found(self, parts, rows, *counts):
        """Numbers (columns, 4) of rows (samples, columns), added in blocks of `counts`; how many columns by value."""
        held, numbers = np.ascontiguousarray(rows, dtype=np.float32), np.zeros((rows.shape[1], 4))
        lengths = (ctypes.c_int * len(counts))(*counts)
        by_value = parts.statistics_of_blocks(
            ctypes.c_void_p(held.ctypes.data), rows.shape[1], len(counts), lengths, ctypes.c_void_p(numbers.ctypes.data)
        )
        return numbers, by_value

    def test_they_are_those_of_single_values(self, parts):
        rng = np.random.default_rng(5)
        one = rng.normal(0, 1, (200, 12)).astype(np.float32)
        one[:, 1] = 3e38 * np.sign(one[:, 1])  # the largest squares
        one[:, 2] *= rng.integers(0, 2, 200)  # zeros of both signs
        one[:, 3] = 0
        one[:, 4] = -np.abs(one[:, 4]) * 2.0**-100  # squares below the range of float
        one[:, 5] *= 2.0 ** rng.integers(-22, 1, 200)  # as far apart as a block can add, and farther
        one[:, 6] *= 10.0 ** rng.integers(-35, 35, 200)
        one[:, 7] = 1e-45
        one[:, 8] = np.nextafter(np.float32(2), np.float32(0)) * np.float32(-1) ** rng.integers(0, 2, 200)
        one[:, 9] = np.where(rng.integers(0, 2, 200), 1 + 2.0**-23, 2.0**-22 * (1 + 2.0**-23))
        one = np.concatenate([one, one[::-1]])
        found, by_value = self.found(parts, one, 128, 64, 17, 1, 2, 60, 128)
        assert found.tobytes() == np.array([statistics(parts, column) for column in one.T]).tobytes()
        assert parts.adds_in_blocks()
        assert by_value == 3  # those that are far apart, or below the normal numbers

    @pytest.mark.parametrize("value", [3.4e38, (2 - 2.0**-23) * 2.0**-126, 1.1754945e-38])
    def test_bins_hold_as_many_as_are_added_before_they_are_folded(self, parts, value):
        one = np.full((32768, 2), value, dtype=np.float32)
        one[1::2, 1] *= np.float32(2.0**-22 if value > 1 else 2.0**22)
        one[::3, 1] *= -1
        found, by_value = self.found(parts, one, *[128] * 256)
        assert found.tobytes() == np.array([statistics(parts, column) for column in one.T]).tobytes()
        assert by_value == 0


class TestTheLowest:
    """Which samples are kept: those with the lowest keys, however many are added."""

    def found(self, parts, hashes, cells, capacity, half=-1, limit=0):
        numbers = np.zeros(2 * len(hashes), dtype=np.int32)
        held = np.asarray(hashes, dtype=np.uint64), np.asarray(cells, dtype=np.int64)
        count = parts.lowest_of(
            *(ctypes.c_void_p(one.ctypes.data) for one in held), len(hashes), capacity, half, ctypes.c_uint64(limit),
            ctypes.c_void_p(numbers.ctypes.data),
        )  # fmt: skip
        return numbers[:count].tolist()

    @pytest.mark.parametrize("capacity", [1, 7, 100, 999, 1000, 1500])
    @pytest.mark.parametrize("largest", [2**64 - 1, 2**64 - 2**63, 1000, 3, 0])
    def test_they_are_the_first_of_all_in_order(self, parts, capacity, largest):
        rng = np.random.default_rng(6)
        hashes = rng.integers(0, largest, 1000, dtype=np.uint64, endpoint=True)
        cells = rng.permutation(1000) - 500
        expected = sorted(range(1000), key=lambda i: (int(hashes[i]), cells[i]))[:capacity]
        assert self.found(parts, hashes, cells, capacity) == expected

    @pytest.mark.parametrize("order", [1, -1])
    def test_rising_and_falling_ones_too(self, parts, order):
        hashes = np.arange(1000, dtype=np.uint64)[::order] * np.uint64(2**54)
        expected = np.argsort(hashes)[:40].tolist()
        assert self.found(parts, hashes, np.zeros(1000), 40) == expected

    def test_one_that_is_shown_again_and_again_is_found_so(self, parts):
        found = self.found(parts, [9] * 5 + [4] * 500 + [3] + [8] * 500, [1] * 1006, 10)
        assert len(found) >= 10
        assert found[0] == 505
        assert set(found[1:]) < set(range(5, 505))

    def test_a_limit_that_ranks_agree_on_is_not_raised_again(self, parts):
        hashes = np.random.default_rng(7).permutation(np.arange(2000, dtype=np.uint64) * np.uint64(2**53))
        limit = 2**53 * 30
        found = self.found(parts, hashes, np.zeros(2000), 100, 500, limit)
        expected = [i for i in np.argsort(hashes) if hashes[i] <= limit or i < 500][:100]
        assert [i for i in found if hashes[i] <= limit] == [i for i in expected if hashes[i] <= limit]
        assert len(found) <= 100


class TestSettings:
    def read(self, parts, text):
        message = ctypes.create_string_buffer(512)
        return parts.read_text(text.encode(), message), message.value.decode()

    def test_they_are_read(self, parts):
        text = settings("out.nc", 60, "strata:\n  variable: b\n  edges: [-2.5, 2.5]\n")
        assert self.read(parts, text) == (0, "out.nc 60 3 2 1 3 K")

    def test_the_examples_are_read(self, parts):
        found = self.read(parts, (EXAMPLE / "collect.yaml").read_text())
        assert found == (0, "collected.nc 5000 1 9 1 1 m")

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("samples: 60", "sampels: 60", "3: sampels: unknown key"),
            ("samples: 60", "samples: many", "3: many: give a whole number, 1 or more"),
            ("samples: 60", "samples 60", "3: samples 60: write KEY: VALUE"),
            ("samples: 60", "# samples: 60", "samples: missing"),
            ("seed: 3", "seed: -3", "4: -3: give a whole number, 0 or more"),
            ("name: a", "name: a b", "6: a b: not a name"),
            ("name: c", "name: a", "a: two variables have this name"),
            ("targets:", "results:", "9: results: unknown key"),
            ("units: K", "levels: 0", "7: 0: give a whole number"),
            ("'one, of two'}", "'one, of two'", "the brace is not closed"),
            ("edges: [1, 2]", "edges: [2, 1]", "at most 256 increasing numbers"),
            ("edges: [1, 2]", "edges: 2", "increasing numbers"),
            ("edges: [1, 2]", "", "give both variable and edges"),
            ("variable: b", "variable: d", "d: must be an input or target without levels"),
            ("variable: b", "regions: 70", "give regions, or variable and edges"),
        ],
    )
    def test_what_is_wrong_is_named_with_its_line(self, parts, old, new, message):
        text = "\n" + settings("out.nc", 60, "strata:\n  variable: b\n  edges: [1, 2]\n")
        assert old in text
        status, found = self.read(parts, text.replace(old, new))
        assert status == -1
        assert message in found


class TestTheSources:
    def test_one_c_file_includes_its_header_alone(self):
        files = collection_files()
        assert set(files) == {"mpitrain_collection.h", "mpitrain_collection.c", "mpitrain_collection_module.f90"}
        own = [line for line in files["mpitrain_collection.c"].splitlines() if line.startswith('#include "')]
        assert own == ['#include "mpitrain_collection.h"']

    def test_the_command_writes_them(self, tmp_path, capsys):
        assert main(["data", "collection", str(tmp_path / "new")]) == 0
        for name, text in collection_files().items():
            assert (tmp_path / "new" / name).read_text() == text
            assert name in capsys.readouterr().out or name != "mpitrain_collection.h"

    def test_a_file_in_the_place_of_the_folder_is_refused(self, tmp_path, capsys):
        (tmp_path / "file").touch()
        assert main(["data", "collection", str(tmp_path / "file")]) == 2
        assert "is a file; give a folder" in capsys.readouterr().err

    def test_parts_are_short(self):
        lengths = {path.name: len(path.read_text().splitlines()) for path in SOURCES.iterdir() if path.suffix != ".f90"}
        assert len(lengths) > 5
        assert {name: length for name, length in lengths.items() if length > 350} == {}
        assert (PROJECT / "jobs" / "collection" / "shallow_water.c").is_file()


class TestNamesOfAFile:
    @pytest.fixture
    def collected(self, tmp_path):
        path = tmp_path / "collected.nc"
        with netCDF4.Dataset(path, "w", format="NETCDF3_64BIT_DATA") as file:
            file.numbers = np.arange(3, dtype=np.int64)
            file.input_variables, file.output_variables = "depth[lev5=:] u", "tendency"
            file.createDimension("sample", 4)
            file.createVariable("u", "f4", ("sample",)).units = "m s-1"
        return path

    def loaded(self, path, **variables):
        config = RunConfig.model_validate({"data": {"data_path": str(path)}, "variables": variables})
        return LoadedConfig(config, ("a notice",))

    def test_they_are_the_inputs_and_targets(self, collected):
        named = with_names_of_file(self.loaded(collected))
        assert named.config.variables.input_variables == ["depth[lev5=:]", "u"]
        assert named.config.variables.output_variables == ["tendency"]
        assert named.config.network.name == "mlp"
        assert named.notices == ("a notice",)

    def test_a_notice_tells_of_weights(self, collected):
        with netCDF4.Dataset(collected, "a") as file:
            file.weight_variable = "weight"
        notice = with_names_of_file(self.loaded(collected)).notices[-1]
        assert "stratified samples, trained on without their weights; set data.area_variable=weight" in notice

    def test_the_settings_come_first(self, collected):
        loaded = self.loaded(collected, input_variables=["u"])
        assert with_names_of_file(loaded) is loaded

    def test_other_and_damaged_files_name_nothing(self, collected, tmp_path):
        for content in (b"", b"CDF\x05", collected.read_bytes()[:90], b"text"):
            (tmp_path / "other.nc").write_bytes(content)
            loaded = self.loaded(tmp_path / "other.nc")
            assert with_names_of_file(loaded) is loaded
        without_data = LoadedConfig(RunConfig(), ())
        assert with_names_of_file(without_data) is without_data
