"""The one switch on how a run's samples are held: in memory, streamed from the files, or as the C++ program does."""

from __future__ import annotations

import torch

from mpitrain.comm.ranks import Ranks
from mpitrain.comm.virtual_ranks import VirtualRanks
from mpitrain.config import RunConfig
from mpitrain.data.dataset.dataset import Dataset
from mpitrain.data.dataset.exchange import read_own_chunks
from mpitrain.data.dataset.in_memory import InMemoryDataset, share_out
from mpitrain.data.dataset.reference import ReferenceDataset, share_out_as_reference
from mpitrain.data.dataset.split import SplitRule, plan_split, split_rule
from mpitrain.data.samples import Samples
from mpitrain.data.selection.source import SampleSource
from mpitrain.data.streaming.dataset import in_enough_chunks, open_streamed

HeldDataset = InMemoryDataset | ReferenceDataset


def open_dataset(config: RunConfig, source: SampleSource, virtual_ranks: VirtualRanks, ranks: Ranks) -> Dataset:
    """Return the samples of `source` as `config` wants them held, normalised and shared out. Collective.

    Raises DataError, on all ranks, where a file cannot be read or nothing is left to train on.
    """
    if config.data.streaming:
        in_chunks = in_enough_chunks(source, virtual_ranks, ranks)
        return open_streamed(in_chunks, ranks, virtual_ranks, config, torch_dtype(config))
    split = ranks.on_root(lambda: plan_split(config, source))
    return hold_samples(config, read_own_chunks(source, ranks), virtual_ranks, ranks, split)


def hold_samples(
    config: RunConfig, samples: Samples, virtual_ranks: VirtualRanks, ranks: Ranks, split: SplitRule | None = None
) -> HeldDataset:
    """Share out samples that are in memory: this rank's part of a selection that all ranks hold together. Collective.

    Raises DataError, on all ranks, where nothing is left to train on, and for what `reference` semantics refuse.
    """
    if config.semantics == "reference":
        return ranks.on_all_ranks(lambda: share_out_as_reference(samples, ranks, torch_dtype(config)))
    rule = split or split_rule(config)
    return ranks.on_all_ranks(lambda: share_out(samples, ranks, virtual_ranks, rule, torch_dtype(config)))


def torch_dtype(config: RunConfig) -> torch.dtype:
    """Return torch's type for `training.dtype`."""
    return {"float32": torch.float32, "float64": torch.float64}[config.training.dtype]
