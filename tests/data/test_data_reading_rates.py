"""How fast samples come from files (see reading_rates.py, whose figures these are). Minutes: with --full alone."""

import checksum_cost
import pytest
from reading_rates import STORAGE, gain_of_two_threads, measure_rates, read_as_a_run, write_files

LEAST = {"uncompressed": 0.8, "deflate 1": 2.0, "deflate 4": 2.0}
LEAST_OF_TWO_THREADS = 1.8
ATTEMPTS, ROUNDS = 3, 9


@pytest.mark.parametrize("name", STORAGE)
def test_samples_come_faster_than_netcdf4_reads(tmp_path, request, monkeypatch, name):
    """By CPU time on one core, which other work changes least; two threads by the clock, against one just before."""
    if not request.config.getoption("--full"):
        pytest.skip("a benchmark: with --full")
    monkeypatch.setattr("mpitrain.data.files.compiled.build.WORTH_BUILDING_BYTES", 0)
    read_as_a_run()
    folder = write_files(tmp_path / "files", STORAGE[name])
    ratios: list[float] = []
    while not ratios or (ratios[-1] < LEAST[name] and len(ratios) < ATTEMPTS):
        rates = measure_rates(folder, 3, with_batches=False)
        ratios.append(rates["samples"].by_cpu / rates["netCDF4"].by_cpu)
    assert max(ratios) >= LEAST[name], ratios
    if name != "uncompressed":
        gains = [gain_of_two_threads(folder, ROUNDS) for _ in range(ATTEMPTS)]
        assert max(gains) >= LEAST_OF_TWO_THREADS, gains


@pytest.mark.parametrize("name", checksum_cost.FORMATS)
def test_checksums_add_little_to_reading(tmp_path, request, name):
    if not request.config.getoption("--full"):
        pytest.skip("a benchmark: with --full")
    file_name, write = checksum_cost.FORMATS[name]
    write(tmp_path / file_name)
    costs: list[float] = []
    while not costs or (costs[-1] > checksum_cost.MOST and len(costs) < ATTEMPTS):
        costs.append(checksum_cost.cost_of(tmp_path / file_name, checksum_cost.ROUNDS)[1])
    assert min(costs) <= checksum_cost.MOST, costs
