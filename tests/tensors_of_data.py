"""Samples as torch's engines take them."""

from dataclasses import replace

import torch

from mpitrain.data.dataset.dataset import Normalization


def as_tensors(data):
    """The same data in tensors that share its memory, its normalisation too."""
    known = data.summary.normalization
    parts = (known.mean, known.std, known.output_mean, known.output_std)
    summary = replace(data.summary, normalization=Normalization(*map(torch.from_numpy, parts)))
    return replace(data.converted(torch.from_numpy), summary=summary)


def numpy_type(dtype):
    return str(dtype).removeprefix("torch.")
