"""Statistics of data sets: exact, the same bits for any number of ranks, and told with where they come from."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from conftest import launch
from field_files import config_of, ramp, write_netcdf, write_xy
from played_ranks import on_played_ranks, played_ranks_of

from mpitrain.datatools import statistics
from mpitrain.datatools.statistics import digest_of, measure
from mpitrain.errors import DataError

DOUBLE = "training.dtype=float64"
ALL = "data.validation_split=0"


def measured(path, *settings, num_ranks=1):
    config = config_of(path, *settings)

    def body(communicator):
        ranks = played_ranks_of(communicator)
        return measure(config, ranks)

    return on_played_ranks(num_ranks, body)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Files of a few kB in tens of chunks."""
    from mpitrain.data.dataset.exchange import open_source_on_root

    monkeypatch.setattr(
        statistics, "open_source_on_root", lambda config, ranks: open_source_on_root(config, ranks, 3000)
    )


def write_random(path, mean, sd, shape=(40, 12, 16)):
    generator = np.random.default_rng(5)
    x, y = generator.normal(mean, sd, (2, *shape))
    y[0, 0, :5] = np.nan
    return write_xy(path, x, y), x, y


def exact(values):
    """Mean and standard deviation by exact sums."""
    count = len(values)
    mean = math.fsum(values) / count
    squares = math.fsum((v - mean) ** 2 for v in values) - math.fsum(v - mean for v in values) ** 2 / count
    return mean, math.sqrt(squares / count)


@pytest.mark.parametrize(("mean", "sd", "tolerance"), [(3.0, 40.0, 1e-12), (1e6, 1e-3, 1e-9)])
def test_against_exact_sums(tmp_path, mean, sd, tolerance):
    path, x, y = write_random(tmp_path / "r.nc", mean, sd)
    kept = ~np.isnan(y)
    (record,) = measured(path, DOUBLE, ALL)
    for one, values in zip(record["variables"], (x[kept], y[kept]), strict=True):
        true_mean, true_sd = exact(values.tolist())
        assert abs(one["mean"] - true_mean) <= 1e-15 * np.abs(values).max()
        assert abs(one["std"] - true_sd) <= tolerance * true_sd
        assert (one["minimum"], one["maximum"], one["weight"]) == (values.min(), values.max(), kept.sum())
    assert [one["missing"] for one in record["variables"]] == [0, 5]
    assert record["samples"] == {
        "selected": 7680, "kept": 7680, "valid": 7675, "training": 7675, "validation": 0,
    }  # fmt: skip


def test_the_same_bits_for_any_number_of_ranks(tmp_path):
    path, *_ = write_random(tmp_path / "r.nc", 1e3, 1.0)
    settings = (DOUBLE, "data.max_patterns=5000", "data.thin_fraction=0.9")
    alone = measured(path, *settings)[0]
    assert alone["samples"]["kept"] == 5000
    assert alone["samples"]["validation"] > 400
    hexes = [float(one[name]).hex() for one in alone["variables"] for name in ("mean", "std", "minimum", "maximum")]
    for num_ranks in (2, 3, 4, 8):
        for record in measured(path, *settings, num_ranks=num_ranks):
            found = [float(o[n]).hex() for o in record["variables"] for n in ("mean", "std", "minimum", "maximum")]
            assert found == hexes
            assert json.dumps(record) == json.dumps(alone)


def test_weighted_by_area(tmp_path):
    latitude = np.array([[0.0] * 5, [60.0] * 5, [60.0] * 5, [90.0] * 5], dtype=np.float32)
    variables = {name: (("time", "nj", "ni"), ramp(first)) for name, first in (("x", 0), ("y", 1))}
    variables["TLAT"] = (("nj", "ni"), latitude)
    path = write_netcdf(tmp_path / "a.nc", variables, TLAT={"units": "degrees_north"})
    (record,) = measured(path, ALL, "data.area_weighted=true")
    weights = np.broadcast_to(np.cos(np.radians(latitude.astype(np.float64))), (3, 4, 5))
    mean = np.average(ramp(), weights=weights)
    assert record["variables"][0]["mean"] == pytest.approx(mean, rel=1e-6)
    assert abs(mean - ramp().mean()) > 1
    assert record["weighted_by"] == "area"


@pytest.mark.parametrize("weighs", ["data.area_weighted=true", "training.area_weighted_loss=true"])
@pytest.mark.parametrize("kind", ["points", "fields"])
def test_a_target_is_weighted_by_area_as_an_input_is(tmp_path: Path, weighs: str, kind: str) -> None:
    """Areas of 1, 2 and 5 in proportion, and a target of one number in each row: 10, 20 and 60."""
    x = ramp(shape=(4, 3, 5))
    y = np.broadcast_to(np.float32([10, 20, 60])[:, None], x.shape)
    areas = np.broadcast_to(np.array([3e6, 6e6, 15e6])[:, None], x.shape[1:])
    variables = {name: (("time", "nj", "ni"), values) for name, values in (("x", x), ("y", y))}
    path = write_netcdf(tmp_path / "a.nc", {**variables, "area": (("nj", "ni"), areas)})
    (record,) = measured(path, ALL, weighs, "data.area_variable=area", f"data.samples={kind}")
    mean = (1 * 10 + 2 * 20 + 5 * 60) / 8
    squares = (1 * (10 - mean) ** 2 + 2 * (20 - mean) ** 2 + 5 * (60 - mean) ** 2) / 8
    of_input, of_target = record["variables"]
    assert (of_target["mean"], of_target["std"]) == pytest.approx((mean, math.sqrt(squares)), rel=1e-14)
    assert of_target["weight"] == of_input["weight"] == 4 * 5 * 24e6 / 2**23
    assert of_input["mean"] == pytest.approx(np.average(x, weights=np.broadcast_to(areas, x.shape)), rel=1e-14)


def test_provenance_and_its_hash(tmp_path):
    path = write_xy(tmp_path / "xy.nc")
    (record,) = measured(path)
    (file,) = record["provenance"]["files"]
    assert file == {"path": str(path), "size_bytes": path.stat().st_size, "mtime_ns": path.stat().st_mtime_ns}
    assert record["provenance"]["settings"]["variables"]["input_variables"] == ["x"]
    assert record["sha256"] == digest_of(record)
    record["variables"][0]["mean"] += 1e-12
    assert record["sha256"] != digest_of(record)


def test_the_command_prints_the_same_on_three_ranks(tmp_path):
    path, *_ = write_random(tmp_path / "r.nc", 1e6, 1e-3)
    settings = ["variables.input_variables=[x]", "variables.output_variables=[y]", "domain.mask_mode=all"]
    words = ["data", "stats", str(path), *settings]
    table, record = (launch(["-m", "mpitrain", *words, *more], ranks) for more, ranks in (([], 3), (["--json"], 3)))
    assert table.returncode == record.returncode == 0, table.stderr + record.stderr
    assert [line.split()[0] for line in table.stdout.splitlines()[:3]] == ["variable", "x", "y"]
    found = json.loads(record.stdout)
    assert found["sha256"] == digest_of(found)
    assert 0.9e-3 < found["variables"][0]["std"] < 1.1e-3, "read as float64"
    alone = launch(["-m", "mpitrain", *words, "--json"])
    assert alone.stdout == record.stdout


def test_nothing_to_measure_is_said(tmp_path):
    path = write_xy(tmp_path / "xy.nc", y=np.full((3, 4, 5), np.nan, dtype=np.float32))
    with pytest.raises(DataError, match="variable 'y' holds fill values only"):
        measured(path, num_ranks=2)
