"""The files of `cases/` on ranks played by threads: the same microbatches, in memory and streamed, on 1 and 3 ranks."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
from conftest import TESTS
from field_files import config_of
from played_ranks import on_played_ranks, played_ranks_of
from streaming_cases import CHUNK_BYTES, V, joined, stream

from mpitrain.comm.virtual_ranks import VirtualRanks
from mpitrain.data.dataset.exchange import read_own_chunks
from mpitrain.data.dataset.in_memory import distribute
from mpitrain.data.dataset.split_rule import split_rule
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of

# Maker, file, inputs, targets: grids, cells with levels, curvilinear grids, reports, tables, stores, several files.
KINDS = {
    "means of months": ("cice_month_end", "iceh.2001.nc", "[month, Tair_h]", "[aice_h]"),
    "cells and levels": ("mpas_levels_last", "history.nc", "['theta[nVertLevels=0]']", "[surface_pressure]"),
    "a curvilinear grid": ("wrf_xtime_xlat", "wrfout.nc", "[U10, hour_of_day]", "[T2]"),
    "months in X and Y": ("iri_months_360", "iri.nc", "[nino, month]", "[prcp]"),
    "reports": ("text_missing_value", "drifters.nc", "[temp]", "[salt]"),
    "a time that is missing": ("masked_time", "gaps.nc", "[a, month]", "[b]"),
    "files of two calendars": ("two_calendars", "[standard.nc, noleap.nc]", "[a]", "[b]"),
    "a store with coded fill values": ("zarr3_coded_fill", "ocean.zarr", "[sst]", "[tair]"),
    "a store with absent chunks": ("zarr_dry_chunks", "sharded.zarr", "[rain]", "[tair]"),
    "a table": ("parquet_nullable", "stations.parquet", "[depth, snowing]", "[temp]"),
}


def write_files(folder: Path) -> None:
    """Write the files of all kinds into `folder`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for maker in dict.fromkeys(maker for maker, *_ in KINDS.values()):
            runpy.run_path(str(TESTS / "data" / "cases" / f"{maker}.py"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All files, written once."""
    folder = tmp_path_factory.mktemp("cases")
    write_files(folder)
    return folder


def settings_of(kind: str) -> tuple[str, tuple[str, ...]]:
    """The value of `data.data_path`, and the settings that name the variables."""
    _, files, inputs, targets = KINDS[kind]
    return files, (f"variables.input_variables={inputs}", f"variables.output_variables={targets}")


def in_memory(kind: str, num_ranks: int) -> dict[int, list]:
    """Inputs, targets, weights and places of each virtual rank's training samples, and the inputs' statistics."""
    files, settings = settings_of(kind)
    config = config_of(files, *settings)

    def body(communicator):
        ranks = played_ranks_of(communicator)
        source = ranks.on_root(lambda: open_source(selection_of(config), CHUNK_BYTES))
        plan = VirtualRanks(V, num_ranks, communicator.rank)
        data = distribute(read_own_chunks(source, ranks), ranks, plan, split_rule(config.split_data), "float32")
        means = data.summary.normalization.mean, data.summary.normalization.std
        return {one.virtual_rank: [one.inputs, one.targets, one.weights, one.grid_index, *means]
                for one in data.training}  # fmt: skip

    return {number: arrays for part in on_played_ranks(num_ranks, body) for number, arrays in part.items()}


def streamed(kind: str, num_ranks: int) -> dict[int, list]:
    """The same of what is read in an epoch."""
    files, settings = settings_of(kind)
    parts = stream(files, num_ranks, *settings, epoch=1)
    summary = parts[0].data.summary
    means = [summary.normalization.mean, summary.normalization.std]
    return {
        number: [*(array for one in microbatches for array in (one.inputs, one.targets, one.weights)), *means]
        for number, microbatches in joined(parts).items()
    }


@pytest.mark.parametrize("read", [in_memory, streamed])
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_share_the_same_samples(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str, read) -> None:
    monkeypatch.chdir(folder)
    alone, together = read(kind, 1), read(kind, 3)
    assert sorted(alone) == sorted(together) == list(range(V))
    for number, arrays in alone.items():
        for one, other in zip(arrays, together[number], strict=True):
            assert np.array_equal(one, other, equal_nan=True)
    assert sum(int((arrays[2] > 0).sum()) for arrays in alone.values()) > 0
