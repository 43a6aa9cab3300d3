"""Faults in what is read, shared out and summed up."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import numpy as np
import torch
from planted_faults.stages import Fault, Stages

from mpitrain.comm.ranks import Ranks
from mpitrain.config import DomainSection
from mpitrain.data.dataset.dataset import LayoutOfSamples, Normalization
from mpitrain.data.dataset.exchange import offset_of, send_to_ranks
from mpitrain.data.dataset.in_memory import InMemoryDataset, distribute
from mpitrain.data.dataset.reference import one_pass_moments
from mpitrain.data.dataset.split_rule import SplitRule, split_rule
from mpitrain.data.describe.names import CICE_INPUTS
from mpitrain.data.open_dataset import DataRequest
from mpitrain.data.samples import Samples
from mpitrain.data.selection.settings import Selection


def _domain(**settings: Any) -> Stages:
    """Select by other rules of `domain`."""
    return Stages(select=lambda asked: dataclasses.replace(asked, domain=DomainSection(**settings)))


def _other_pole(asked: Selection) -> Selection:
    other: Literal["north", "south"] = "north" if asked.domain.pole == "south" else "south"
    return dataclasses.replace(asked, domain=DomainSection(pole=other, clean_data=asked.domain.clean_data))


def _swapped_inputs(asked: Selection) -> Selection:
    names = tuple(CICE_INPUTS[place] for place in (0, 1, 2, 3, 5, 4, 6))
    return dataclasses.replace(asked, input_names=names)


def _contiguous(samples: Samples, ranks: Ranks) -> Samples:
    offset = offset_of(len(samples), ranks)
    numbers = offset.first + np.arange(len(samples))
    own, _ = send_to_ranks(samples, numbers * ranks.world_size // offset.total, numbers, ranks)
    return own


def _untruncated(own: Samples, num_selected: int, ranks: Ranks) -> Samples:
    return own


def _sample_variance(inputs: torch.Tensor, ranks: Ranks) -> tuple[torch.Tensor, torch.Tensor]:
    mean, std = one_pass_moments(inputs, ranks)
    count = len(inputs) * ranks.world_size
    return mean, std * math.sqrt(count / (count - 1))


def _mean_of_means(inputs: torch.Tensor, ranks: Ranks) -> tuple[torch.Tensor, torch.Tensor]:
    parts = ranks.gather_object((inputs.double().mean(dim=0), inputs.double().pow(2).mean(dim=0)))
    mean, square = (torch.stack(column).mean(dim=0) for column in zip(*parts, strict=True))
    return mean.to(inputs.dtype), (square - mean**2).sqrt().to(inputs.dtype)


def _float64_moments(inputs: torch.Tensor, ranks: Ranks) -> tuple[torch.Tensor, torch.Tensor]:
    sums, squares = inputs.double().sum(dim=0), inputs.double().pow(2).sum(dim=0)
    ranks.all_reduce(sums)
    ranks.all_reduce(squares)
    count = torch.tensor(float(len(inputs)), dtype=torch.float64)
    ranks.all_reduce(count)
    mean = sums / count
    return mean.to(inputs.dtype), (squares / count - mean**2).sqrt().to(inputs.dtype)


def _with_normalization(dataset: InMemoryDataset, normalization: Normalization) -> InMemoryDataset:
    return dataclasses.replace(dataset, summary=dataclasses.replace(dataset.summary, normalization=normalization))


def _unweighted_merge(request: DataRequest, samples: Samples, layout: LayoutOfSamples, ranks: Ranks) -> InMemoryDataset:
    """Give every virtual rank's mean and variance the same weight, however many samples it has."""
    data = distribute(samples, ranks, layout, split_rule(request.data), request.dtype)
    own = [(share.inputs.mean(0, np.float64), share.inputs.var(0, np.float64)) for share in data.training]
    everyone = [pair for part in ranks.gather_object(own) for pair in part]
    mean, variance = (np.mean(column, axis=0) for column in zip(*everyone, strict=True))
    before = data.summary.normalization
    found = dataclasses.replace(
        before, mean=mean.astype(before.mean.dtype), std=np.sqrt(variance).astype(before.std.dtype)
    )
    return _with_normalization(data, found)


def _statistics_of_all(
    request: DataRequest, samples: Samples, layout: LayoutOfSamples, ranks: Ranks
) -> InMemoryDataset:
    data, everything = (
        distribute(samples, ranks, layout, rule, request.dtype)
        for rule in (split_rule(request.data), SplitRule(0.0, 0.0, split_rule(request.data).seed))
    )
    return _with_normalization(data, everything.summary.normalization)


DATA_FAULTS = (
    Fault("wrong pole", "selected samples", Stages(select=_other_pole)),
    Fault("aice < 1 for aice <= 1", "selected samples", _domain(mask="aice_h < 1")),
    Fault("latitude >= 40 for > 40", "selected samples", _domain(mask_mode="sea_ice", latitude_range=[40, 90])),
    Fault("mask ignored", "selected samples", _domain(mask_mode="all", mask="ULAT > 40 and 0 < aice_h <= 1")),
    Fault(
        "contiguous partition for round robin", "partition", Stages(of_reference={"partition_round_robin": _contiguous})
    ),
    # The one-pass sums with unequal counts would be no number at all.
    Fault(
        "no truncation to the smallest rank",
        "partition",
        Stages(of_reference={"truncate_to_smallest": _untruncated, "one_pass_moments": _float64_moments}),
    ),
    Fault(
        "sample variance for population variance",
        "statistics",
        Stages(of_reference={"one_pass_moments": _sample_variance}),
    ),
    Fault(
        "mean of the ranks' means in float64", "statistics", Stages(of_reference={"one_pass_moments": _mean_of_means})
    ),
    Fault("float64 statistics", "statistics", Stages(of_reference={"one_pass_moments": _float64_moments})),
    Fault("hs and hi swapped", "statistics", Stages(select=_swapped_inputs)),
    Fault("unweighted merge of moments", "statistics", Stages(hold_samples=_unweighted_merge), "standard"),
    Fault("validation samples in the statistics", "statistics", Stages(hold_samples=_statistics_of_all), "standard"),
)
