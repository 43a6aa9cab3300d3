"""Measured peak of floating-point operations a second of this core, to compare a step's with."""

from __future__ import annotations

import ctypes
import itertools

from mpitrain.cluster.cpu.kernel_cache import load_library
from mpitrain.train.compiled.build import build_source

_SECONDS = 0.05


def measure_peak(instruction_set: str = "native") -> float:
    """Return the most float32 operations a second of this core in independent fused multiply-adds, each of them two.

    With the widest registers that a step compiled for `instruction_set` uses here. Raises as `build_kernel` does.
    """
    measure = load_library(build_source("peak", (), instruction_set)).most_multiply_adds_a_second
    measure.argtypes, measure.restype = (ctypes.c_double, ctypes.c_double), ctypes.c_double
    return 2 * float(measure(_SECONDS, 0.0))


def operations_of(sizes: tuple[int, ...], num_samples: int) -> int:
    """Return the floating-point operations in the products of a step of dense layers, `sizes` from inputs to outputs.

    Forward, of the weights' gradient, and, but for the first layer, of the derivatives by the layer's inputs. What
    activations, loss and optimiser take is not counted.
    """
    products = [inputs * outputs for inputs, outputs in itertools.pairwise(sizes)]
    return 2 * num_samples * (3 * sum(products) - products[0])
