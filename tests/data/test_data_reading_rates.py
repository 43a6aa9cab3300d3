"""How fast samples come from files (see reading_rates.py, whose figures these are). Minutes: with --full alone."""

import pytest
from reading_rates import STORAGE, measure_rates, use_kernels_at_once, write_files

LEAST = {"uncompressed": 0.8, "deflate 1": 2.0, "deflate 4": 2.0}


@pytest.mark.parametrize("name", STORAGE)
def test_samples_come_faster_than_netcdf4_reads(tmp_path, request, monkeypatch, name):
    """By CPU time, which other work on the machine changes least."""
    if not request.config.getoption("--full"):
        pytest.skip("a benchmark: with --full")
    monkeypatch.setattr("mpitrain.data.files.compiled.build.WORTH_BUILDING_BYTES", 0)
    use_kernels_at_once()
    folder, ratios = write_files(tmp_path / "files", STORAGE[name]), []
    for _ in range(3):
        rates = measure_rates(folder, 3, with_batches=False)
        ratios.append(rates["samples"].by_cpu / rates["netCDF4"].by_cpu)
        if ratios[-1] >= LEAST[name]:
            break
    assert max(ratios) >= LEAST[name], ratios
