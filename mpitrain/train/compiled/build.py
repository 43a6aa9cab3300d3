"""The compiled training step of a network: built once for its sizes, kept in a cache, called through ctypes.

k  microbatches of this rank      b  rows a microbatch      n  parameters
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from mpitrain.cache import cache_folder
from mpitrain.cluster import detect_cpu, instruction_flags
from mpitrain.cluster.cpu.compiler_flags import build_identity
from mpitrain.cluster.cpu.kernel_cache import CompilerError, compile_into, find_or_build, load_library
from mpitrain.compiler import find_compiler
from mpitrain.errors import MissingDependencyError, reason_of
from mpitrain.train.compiled.structs import check_sizes

Say = Callable[[str], None]
_KERNELS = Path(__file__).with_name("kernels")
_C_TYPES = {"float32": "float", "float64": "double"}
# No contraction to fused operations by the compiler: otherwise the bits would depend on compiler, optimisation level
# and CPU.
_FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")


class KernelNetwork(Protocol):
    """A network for which the kernel `kernels/SOURCE.cpp` is compiled, with `macros` that describe it."""

    source: ClassVar[str]

    @property
    def num_points(self) -> int:
        """The number of points of a sample."""

    def macros(self) -> list[str]:
        """Return the compiler's options that define the macros of the kernel's source."""

    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class DenseNetwork:
    """A chain of linear layers: `sizes` from inputs to outputs, activations and loss by their names in the kernel.

    `dtype` is float32 or float64. `dropout` is the probability with which a hidden unit is dropped. `norm_rows` is the
    maximum number of rows of a microbatch for a chain with batch norm, 0 for any other.
    """

    source: ClassVar[str] = "dense_network"

    sizes: tuple[int, ...]
    hidden_activation: str
    output_activation: str
    loss: str
    dtype: str
    dropout: float = 0.0
    norm_rows: int = 0
    has_layer_norm: bool = False
    is_residual: bool = False

    @property
    def num_points(self) -> int:
        """See `KernelNetwork.num_points`."""
        return 1

    def macros(self) -> list[str]:
        """See `KernelNetwork.macros`."""
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


def load_kernel(network: KernelNetwork, instruction_set: str = "native") -> ctypes.CDLL:
    """Return the compiled kernel of `network`. It is built (a few seconds) unless the cache holds it for this machine.

    Raises as `build_kernel`.
    """
    try:
        library = load_library(build_kernel(network, instruction_set))
    except (OSError, ValueError) as error:
        raise MissingDependencyError(f"the compiled step cannot be loaded: {reason_of(error)}; start again") from error
    check_sizes(library)
    address, count, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    for name, result, arguments in (
        ("workspace_bytes", count, ()),
        ("clock_ticks", ctypes.c_uint64, ()),
        ("most_shared_rows", count, ()),
        ("adds_by_shares", count, ()),
        ("shared_bytes", count, (count,)),
        ("add_parameters_to_digest", None, (address,)),
        ("sum_microbatches", None, (address, address, number)),
        ("add_shared", count, (address, address)),
        ("apply_sum", None, (address, address, number)),
        ("take_steps", count, (address, address, address, count, count, number, number, address)),
        ("add_losses", None, (address, address, count, address)),
    ):
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return library


def build_kernel(network: KernelNetwork, instruction_set: str = "native", say: Say = lambda _: None) -> Path:
    """Return the kernel's library file, verified by its hash; compiled now unless the cache holds it undamaged.

    `say` is called with a message when a damaged file is replaced. Raises MissingDependencyError if there is no C++
    compiler, if it fails, or if the cache cannot be written, and ConfigError if this CPU lacks instructions of
    `instruction_set`, which is `compute.instruction_set`.
    """
    return build_source(network.source, network.macros(), instruction_set, say)


def build_source(
    name: str, macros: Sequence[str] = (), instruction_set: str = "native", say: Say = lambda _: None
) -> Path:
    """Return the library file of `kernels/NAME.cpp`; see `build_kernel`."""
    compiler, cpu = cpp_compiler(), detect_cpu()
    source = _KERNELS / f"{name}.cpp"
    sources = [path.read_text() for path in sorted(_KERNELS.glob("*.?pp"))]
    flags = [*_FLAGS, *instruction_flags(cpu, instruction_set), *macros]
    # The identity includes the CPU: nodes of several kinds may share a cache in a home folder.
    identity = "\n".join([*sources, compiler, *flags, build_identity(cpu, instruction_set)])
    record, command = (
        f"{name}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json",
        [compiler, *flags, str(source)],
    )
    try:
        return find_or_build(record, lambda path: compile_into(path, command), say)
    except CompilerError as error:
        raise MissingDependencyError(
            f"{compiler} could not build the compiled step: {_first_line(str(error))}"
        ) from error
    except OSError as error:
        raise MissingDependencyError(
            f"the compiled step cannot be stored in {cache_folder()} or in $TMPDIR ({error.strerror}); set "
            "MPITRAIN_CACHE to a folder with space"
        ) from error


def cpp_compiler() -> str:
    """Return the C++ compiler: $CXX, c++, g++ or clang++. Raises MissingDependencyError that says what to install."""
    found = find_compiler("c++", os.environ)
    if found is None:
        raise MissingDependencyError(
            "no C++ compiler (c++, g++, clang++ or $CXX) on the PATH; on Debian or Ubuntu: apt-get install g++, "
            "on a cluster: module load a compiler"
        )
    return found


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "no message")
