"""Measured peak floating-point operations per second of this core, to which a step's rate is compared."""

from __future__ import annotations

import ctypes
import itertools

from mpitrain.cluster.cpu.kernel_cache import load_library
from mpitrain.train.compiled.build import build_source

_SECONDS = 0.05


def measure_peak(instruction_set: str = "native") -> float:
    """Return this core's peak float32 operations per second in fused multiply-adds, each of which counts as two.

    Uses the widest registers of a step that is compiled for `instruction_set`. Raises as `build_kernel`.
    """
    measure = load_library(build_source("peak", (), instruction_set)).most_multiply_adds_a_second
    measure.argtypes, measure.restype = (ctypes.c_double, ctypes.c_double), ctypes.c_double
    return 2 * float(measure(_SECONDS, 0.0))


def operations_of(sizes: tuple[int, ...], num_samples: int) -> int:
    """Return the floating-point operations in the matrix products of a step of dense layers.

    `sizes` are from inputs to outputs. Counted are the products of the forward pass, of the weights' gradient, and of
    the derivatives by each layer's inputs except the first layer's; activations, loss and optimiser are not.
    """
    products = [inputs * outputs for inputs, outputs in itertools.pairwise(sizes)]
    return 2 * num_samples * (3 * sum(products) - products[0])
