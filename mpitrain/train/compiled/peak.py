"""How many floating-point operations a second this core does at most, measured: what a step's are compared with."""

from __future__ import annotations

import ctypes
import itertools

from mpitrain.train.compiled.build import build_source

_SECONDS = 0.05


def measure_peak() -> float:
    """Return the most float32 operations a second of this core in independent fused multiply-adds, each of them two.

    With the widest registers that the compiled step uses here. Raises as `build_kernel` does.
    """
    measure = ctypes.CDLL(str(build_source("peak"))).most_multiply_adds_a_second
    measure.argtypes, measure.restype = (ctypes.c_double, ctypes.c_double), ctypes.c_double
    return 2 * float(measure(_SECONDS, 0.0))


def operations_of(sizes: tuple[int, ...], num_samples: int) -> int:
    """Return the floating-point operations in the products of a step of dense layers, `sizes` from inputs to outputs.

    Forward, of the weights' gradient, and, but for the first layer, of the derivatives by the layer's inputs. What
    activations, loss and optimiser take is not counted.
    """
    products = [inputs * outputs for inputs, outputs in itertools.pairwise(sizes)]
    return 2 * num_samples * (3 * sum(products) - products[0])
