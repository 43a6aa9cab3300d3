"""Choice of a run's data set: in memory, streamed from the files, or distributed as in the C++ program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mpitrain.comm import Ranks
from mpitrain.config import DataSection
from mpitrain.data.dataset.dataset import Dataset, LayoutOfSamples, settled
from mpitrain.data.dataset.exchange import read_own_chunks
from mpitrain.data.dataset.in_memory import InMemoryDataset, distribute
from mpitrain.data.dataset.split import plan_split
from mpitrain.data.dataset.split_rule import SplitRule, split_rule
from mpitrain.data.samples import Samples
from mpitrain.data.selection.source import SampleSource
from mpitrain.data.streaming.dataset import in_enough_chunks, open_streamed

if TYPE_CHECKING:
    from mpitrain.data.dataset.reference import ReferenceDataset


@dataclass(frozen=True)
class DataRequest:
    """The settings that determine the data set; `data` is `RunConfig.split_data` and `dtype` is `training.dtype`."""

    data: DataSection
    dtype: str = "float32"
    semantics: str = "standard"


def open_dataset(request: DataRequest, source: SampleSource, layout: LayoutOfSamples, ranks: Ranks) -> Dataset:
    """Return the samples of `source` as the data set that `request` selects, distributed over the ranks. Collective.

    Raises DataError, on all ranks, if a file cannot be read or no training sample is left.
    """
    if request.data.streaming:
        # An upper bound on the number of streams: the samples are counted later.
        num_streams = settled(layout, source.num_points, source.num_points).num_streams
        in_chunks = in_enough_chunks(source, num_streams, ranks)
        return open_streamed(in_chunks, ranks, layout, request.data, request.dtype)
    split = ranks.on_root(lambda: plan_split(request.data, source))
    return hold_samples(request, read_own_chunks(source, ranks), layout, ranks, split)


def hold_samples(
    request: DataRequest, samples: Samples, layout: LayoutOfSamples, ranks: Ranks, split: SplitRule | None = None
) -> InMemoryDataset | ReferenceDataset:
    """Distribute samples in memory over the ranks; `samples` is this rank's part of the selection. Collective.

    Raises DataError, on all ranks, if no training sample is left, or for samples that `reference` semantics refuse.
    """
    if request.semantics == "reference":
        import torch

        from mpitrain.data.dataset.reference import share_out_as_reference  # loads torch

        return ranks.on_all_ranks(lambda: share_out_as_reference(samples, ranks, getattr(torch, request.dtype)))
    rule = split or split_rule(request.data)
    return ranks.on_all_ranks(lambda: distribute(samples, ranks, layout, rule, request.dtype))
