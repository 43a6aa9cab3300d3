"""What members of a group share is only what is the same for them: descriptions of models, samples in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from networks import build_icenet
from played_ranks import on_played_ranks, played_ranks_of

from mpitrain.config import load_run_config
from mpitrain.data.open_dataset import open_dataset
from mpitrain.data.samples import valid_rows
from mpitrain.data.streaming.dataset import StreamedDataset
from mpitrain.ensemble.plan.members import plan_members
from mpitrain.ensemble.training.member_data import read_for_members
from mpitrain.ensemble.training.member_files import ModelFiles
from mpitrain.models.files.stored_network import read_description
from mpitrain.models.files.torchscript import ModelDescription
from mpitrain.runs.build import data_request
from mpitrain.runs.layout import LayoutRule

NAMES = tuple("abcdefg")


@pytest.mark.parametrize("is_same_network", [True, False])
def test_each_model_has_its_own_description(tmp_path: Path, is_same_network: bool) -> None:
    files, network = ModelFiles(), build_icenet(7, 4, "tanh", 0)
    for number, target in enumerate(("hs", "hi")):
        description = ModelDescription(NAMES, (target,), ("1",) * 7, ("m",))
        files.write(network, tmp_path / f"{number}.pt", description, waits_for_disk=False)
        network = network if is_same_network else build_icenet(7, 4, "tanh", number + 1)
    assert [read_description(tmp_path / f"{number}.pt").target_names for number in (0, 1)] == [("hs",), ("hi",)]


@pytest.mark.parametrize("streaming", [False, True])
def test_streamed_samples_are_not_held_in_memory(tmp_path: Path, small_history: Path, streaming: bool) -> None:
    words = [f"data.data_path={small_history}", "ensemble.members=2", f"data.streaming={str(streaming).lower()}"]
    plan = plan_members(load_run_config(None, words).config, None, words, tmp_path)

    def body(communicator):
        ranks = played_ranks_of(communicator)
        data = read_for_members(plan.members, ranks, ranks)
        held = len(data.shared)
        config = plan.members[0].config
        assert config is not None
        first, second = (data.dataset(config, LayoutRule(config, "points", 1, 0, None, False), ranks) for _ in "ab")
        data.close()
        assert isinstance(first, StreamedDataset) == streaming
        return held, len(data.sources), first is second

    # Members that stream read for themselves: a dataset that is kept would keep its chunks.
    assert on_played_ranks(1, body) == [(0 if streaming else 1, 1, not streaming)]


@pytest.mark.parametrize("values", ["[true,false]", "[false,true]"])
def test_members_that_stream_leave_others_their_shared_samples(
    tmp_path: Path, small_history: Path, values: str
) -> None:
    words = [f"data.data_path={small_history}", f"ensemble.grid.data.streaming={values}"]
    plan = plan_members(load_run_config(None, words).config, None, words, tmp_path)

    def body(communicator):
        ranks = played_ranks_of(communicator)
        data = read_for_members(plan.members, ranks, ranks)
        held = len(data.shared), len(data.sources)
        data.close()
        return held

    assert on_played_ranks(1, body) == [(1, 2)]


@pytest.mark.parametrize("weighs", ["data.area_weighted=true", "training.area_weighted_loss=true"])
def test_the_statistics_that_members_share_count_areas(tmp_path: Path, small_history: Path, weighs: str) -> None:
    words = [f"data.data_path={small_history}", "ensemble.members=2", "data.validation_split=0", weighs]
    plan = plan_members(load_run_config(None, words).config, None, words, tmp_path)

    def body(communicator):
        ranks = played_ranks_of(communicator)
        data = read_for_members(plan.members, ranks, ranks)
        config = plan.members[0].config
        assert config is not None
        assert len(data.shared) == 1
        source, rule = data.source(config, ranks), LayoutRule(config, "points", 1, 0, None, False)
        shared = data.dataset(config, rule, ranks).summary
        alone = open_dataset(data_request(config), source, rule.virtual_ranks, ranks).summary
        data.close()
        return shared.moments, alone.moments, source.read_all()

    ((shared, alone, samples),) = on_played_ranks(1, body)
    assert shared.packed().tobytes() == alone.packed().tobytes()
    samples = samples.take(np.flatnonzero(valid_rows(samples)))
    areas, columns = (one.astype(np.float64) for one in (samples.area_weights, np.stack(samples.features)))
    mean = np.average(columns, axis=1, weights=areas)
    np.testing.assert_allclose(shared.count, areas.sum(), rtol=1e-12)
    np.testing.assert_allclose(shared.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(shared.m2, (areas * (columns - mean[:, None]) ** 2).sum(axis=1), rtol=1e-12)
    assert (np.abs(columns.mean(axis=1) - mean) > 5e-4 * np.abs(mean)).all(), "areas must matter for this test"
