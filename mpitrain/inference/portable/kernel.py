"""Portable arithmetic compiled for an architecture and called with the weights: the bits of `with_numpy`, faster."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

import numpy as np

from mpitrain.cluster.cpu.kernel_cache import build_or_none
from mpitrain.compiler import find_compiler
from mpitrain.inference.portable.in_c import C_BEGIN, C_END, c_functions, numbers_of, with_prefix
from mpitrain.inference.portable.network import Array, PortableNetwork

# The same flags as for an exported C++ source; -ffp-contract=off repeats the source's own pragma.
_FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-shared", "-fPIC")
_ENTRIES = """
extern "C" void kernel_forward(const network_numbers *network, size_t num_samples, const real *x, real *y) {
    for (size_t first = 0; first < num_samples; first += TILE) {
        const size_t count = num_samples - first < TILE ? num_samples - first : (size_t)TILE;
        real tile_x[INPUTS * TILE], tile_y[OUTPUTS * TILE];
        load_tile(INPUTS, first, count, 1, INPUTS, x, tile_x);
        all_forward_tile(network, tile_x, tile_y);
        store_tile(OUTPUTS, first, count, 1, OUTPUTS, tile_y, y);
    }
}
extern "C" void kernel_jacobian(const network_numbers *network, size_t num_samples, const real *x, real *y,
                                real *jacobian) {
    for (size_t first = 0; first < num_samples; first += TILE) {
        const size_t count = num_samples - first < TILE ? num_samples - first : (size_t)TILE;
        real tile_x[INPUTS * TILE], tile_y[OUTPUTS * TILE], tile_jacobian[OUTPUTS * INPUTS * TILE];
        load_tile(INPUTS, first, count, 1, INPUTS, x, tile_x);
        all_jacobian_tile(network, tile_x, tile_y, tile_jacobian);
        store_tile(OUTPUTS, first, count, 1, OUTPUTS, tile_y, y);
        store_tile(OUTPUTS * INPUTS, first, count, 1, OUTPUTS * INPUTS, tile_jacobian, jacobian);
    }
}
"""


class Kernel:
    """Compiled functions of a network's architecture, with the network's weights."""

    def __init__(self, library: ctypes.CDLL, network: PortableNetwork) -> None:
        self._library, self._network = library, network
        self._numbers = np.concatenate([np.ascontiguousarray(values).ravel() for _, values in numbers_of(network)])

    def forward(self, inputs: Array) -> Array:
        """Return the outputs (N, O) for `inputs` (N, F)."""
        x = np.ascontiguousarray(inputs)
        y = np.empty((len(x), self._network.sizes[-1]), x.dtype)
        self._library.kernel_forward(_address(self._numbers), ctypes.c_size_t(len(x)), _address(x), _address(y))
        return y

    def jacobian(self, inputs: Array) -> tuple[Array, Array]:
        """Return outputs (N, O) and derivatives (N, O, F) for `inputs` (N, F)."""
        x, (num_inputs, *_, num_outputs) = np.ascontiguousarray(inputs), self._network.sizes
        y, rows = np.empty((len(x), num_outputs), x.dtype), np.empty((len(x), num_outputs, num_inputs), x.dtype)
        count = ctypes.c_size_t(len(x))
        self._library.kernel_jacobian(_address(self._numbers), count, _address(x), _address(y), _address(rows))
        return y, rows


def open_kernel(network: PortableNetwork, environ: Mapping[str, str] = os.environ) -> Kernel | None:
    """Return the network's kernel, compiled if it is not in the cache; None without a usable compiler."""
    compiler = find_compiler("c++", environ)
    if compiler is None:
        return None
    source = with_prefix("".join([C_BEGIN, c_functions(network, 1, "kernel"), _ENTRIES, C_END]), "kernel")
    library = build_or_none("prediction", compiler, _FLAGS, source)
    return None if library is None else Kernel(library, network)


def _address(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
