"""The compiled training step of a dense network: built once for its sizes, kept in a cache, called by address.

k  slices of this rank      b  rows a slice      n  parameters
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from mpitrain.cache import cache_folder
from mpitrain.cluster.cpu.compiler_flags import build_identity, instruction_flags
from mpitrain.cluster.cpu.identity import detect_cpu
from mpitrain.cluster.cpu.kernel_cache import find_kernel, store_kernel
from mpitrain.compiler import find_cpp_compiler
from mpitrain.errors import MissingDependencyError
from mpitrain.train.compiled.structs import check_sizes

Say = Callable[[str], None]
_KERNELS = Path(__file__).with_name("kernels")
_C_TYPES = {torch.float32: "float", torch.float64: "double"}
# Nothing is fused but what the sources fuse: else the bits would follow compiler, optimisation level and CPU.
_FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")


@dataclass(frozen=True)
class DenseNetwork:
    """A chain of linear layers: `sizes` from inputs to outputs, activations by their names in the kernel, the loss.

    `dropout` is the probability of a hidden unit's; `norm_rows`, of a chain with batch norm, the most rows that a
    microbatch has, and 0 of any other.
    """

    sizes: tuple[int, ...]
    hidden_activation: str
    output_activation: str
    loss: str
    dtype: torch.dtype
    dropout: float = 0.0
    norm_rows: int = 0
    has_layer_norm: bool = False
    is_residual: bool = False

    def macros(self) -> list[str]:
        """Return what the kernel's source needs to be told."""
        sizes = ",".join(map(str, self.sizes))
        named = {"HIDDEN": self.hidden_activation, "OUTPUT": self.output_activation, "LOSS": self.loss}
        return [
            f"-DREAL={_C_TYPES[self.dtype]}",
            f"-DLAYER_SIZES={sizes}",
            *(f"-D{key}={name}" for key, name in named.items()),
            *([f"-DDROPOUT={self.dropout!r}"] if self.dropout else []),
            *([f"-DBATCH_NORM={self.norm_rows}"] if self.norm_rows else []),
            *(["-DLAYER_NORM=1"] if self.has_layer_norm else []),
            *(["-DRESIDUAL=1"] if self.is_residual else []),
        ]


def load_kernel(network: DenseNetwork, instruction_set: str = "native") -> ctypes.CDLL:
    """Return the compiled kernel of `network`, building it if no run on this kind of machine has yet (a few seconds).

    Raises as `build_kernel` does.
    """
    library = ctypes.CDLL(str(build_kernel(network, instruction_set)))
    check_sizes(library)
    address, count, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    for name, result, arguments in (
        ("workspace_bytes", count, ()),
        ("clock_ticks", ctypes.c_uint64, ()),
        ("most_shared_rows", count, ()),
        ("shared_bytes", count, (count,)),
        ("add_parameters_to_digest", None, (address,)),
        ("sum_slices", None, (address, address, number)),
        ("add_shared", count, (address, address)),
        ("apply_sum", None, (address, address, number)),
        ("take_steps", count, (address, address, address, count, count, number, number, address)),
        ("add_losses", None, (address, address, count, address)),
    ):
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return library


def build_kernel(network: DenseNetwork, instruction_set: str = "native", say: Say = lambda _: None) -> Path:
    """Return the kernel's file, every byte checked; compiled now if the cache does not hold it whole.

    `say` is told when a damaged one is replaced. Raises MissingDependencyError where there is no C++ compiler, where it
    fails, or where the cache cannot be written, and ConfigError where this CPU lacks a part of `instruction_set`, which
    is `compute.instruction_set`.
    """
    return build_source("dense_network", network.macros(), instruction_set, say)


def build_source(
    name: str, macros: Sequence[str] = (), instruction_set: str = "native", say: Say = lambda _: None
) -> Path:
    """Return the library of `kernels/NAME.cpp`; see `build_kernel`."""
    compiler, cpu = find_compiler(), detect_cpu()
    source = _KERNELS / f"{name}.cpp"
    sources = [path.read_text() for path in (*sorted(_KERNELS.glob("*.hpp")), source)]
    flags = [*_FLAGS, *instruction_flags(cpu, instruction_set), *macros]
    # A cache in a home folder that several kinds of nodes share must not hand one kind's instructions to another.
    identity = "\n".join([*sources, compiler, *flags, build_identity(cpu, instruction_set)])
    record = cache_folder() / f"{name}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"
    try:
        found = find_kernel(record)
    except ValueError as error:
        say(f"the cache of compiled steps: {error}; it is built anew")
        found = None
    return found or _compile([compiler, *flags, str(source)], record)


def _compile(command: list[str], record: Path) -> Path:
    """Run the compiler and store what it builds; return the library."""
    partial = record.with_name(f"{record.stem}.{platform.node()}.{os.getpid()}.partial")
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        command = [*command, "-o", str(partial)]
        # In a session of its own: a Ctrl-C is for the run, which stops after its first step, not for the compiler.
        done = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True)
        if done.returncode != 0:
            raise MissingDependencyError(f"{command[0]} could not build the compiled step: {_first_line(done.stderr)}")
        return store_kernel(partial, record)
    except OSError as error:
        raise MissingDependencyError(
            f"the compiled step cannot be stored in {record.parent} ({error.strerror}); set MPITRAIN_CACHE to a folder "
            "with space"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def find_compiler() -> str:
    """Return the C++ compiler: $CXX, c++, g++ or clang++. Raises MissingDependencyError naming what to install."""
    found = find_cpp_compiler(os.environ)
    if found is None:
        raise MissingDependencyError(
            "no C++ compiler (c++, g++, clang++ or $CXX) on the PATH; on Debian or Ubuntu: apt-get install g++, "
            "on a cluster: module load a compiler"
        )
    return found


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "no message")
