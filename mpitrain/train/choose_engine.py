"""Which step engine a run uses, and why: decided from things that do not depend on the number of ranks.

Also what `distributed.strategy` asks of the launch, and the switches of torch that a run sets for its whole process.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import replace

import torch
from torch import nn

from mpitrain.comm.ranks import Ranks
from mpitrain.config import DistributedSection, RunConfig, TrainingSection
from mpitrain.config.yaml import show_value
from mpitrain.data.dataset.batches import Slice
from mpitrain.data.open_dataset import torch_dtype
from mpitrain.errors import ConfigError, LaunchError, MissingDependencyError
from mpitrain.models.mlp import dense_chain_of
from mpitrain.train.compiled.build import DenseNetwork, build_kernel, load_kernel
from mpitrain.train.engine_choice import EngineChoice
from mpitrain.train.traced.record import needs_autograd, record_gradient

# Batch norm needs all rows of a microbatch at once, with their activations; more would not stay in the CPU's caches.
MOST_NORM_ROWS = 4096
# Wider layers spend their time in products that torch's libraries do better.
LARGEST_COMPILED_WIDTH = 512
Kernels = dict[tuple[DenseNetwork, str], ctypes.CDLL]
"""Loaded kernels by network and `compute.instruction_set`."""
_OF_DDP_ONLY = (
    "find_unused_parameters", "gradient_as_bucket_view", "broadcast_buffers", "bucket_cap_mb", "static_graph",
)  # fmt: skip


def choose_engine(
    config: RunConfig,
    ranks: Ranks,
    model: nn.Module,
    example: Slice,
    resumed_engine: str | None,
    num_microbatches: int = 1,
    target_weights: tuple[float, ...] = (),
    kernels: Kernels | None = None,
) -> EngineChoice:
    """Choose by `training.engine`; `auto` keeps the engine of the resumed run, else takes the fastest. Collective.

    `example` is a microbatch of this run, of which the rank has `num_microbatches`: its shapes count, and so do the
    `target_weights` of its loss. `kernels`, the same on all ranks, are those that are loaded. `compiled` is for chains
    of dense layers, `traced` for any other network that does the same in each step, `eager` for the rest.

    Raises ConfigError or MissingDependencyError, on all ranks, when the asked engine cannot serve here.
    """
    if config.semantics == "reference":
        return EngineChoice("reference", "")
    asked = requested_engine(config)
    if asked == "auto" and resumed_engine:
        asked = resumed_engine
    if asked == "cuda_graph" and ranks.device.type != "cuda":
        raise ConfigError("training.engine=cuda_graph: needs a GPU, this run is on CPUs; use training.engine=auto")
    if asked in ("eager", "ddp", "cuda_graph"):
        return EngineChoice(asked, "asked for")
    # With "any" a rank's microbatches are one: the whole batch bounds its rows, whatever the number of ranks.
    num_rows = len(example.inputs) * (sum(ranks.gather_object(num_microbatches)) if ranks.reduction == "any" else 1)
    obstacle = _not_compilable(config, ranks.device, model, num_rows)
    if asked == "compiled" and obstacle is not None:
        raise ConfigError(f"training.engine=compiled: {obstacle}; use training.engine=auto")
    if asked == "traced" or obstacle is not None:
        return _choose_traced(config, ranks, model, example, target_weights, asked, obstacle or "asked for")
    network = dense_network_of(config, model, num_rows)
    try:
        kernel = _load_everywhere(ranks, network, config.compute.instruction_set, {} if kernels is None else kernels)
        return EngineChoice("compiled", "a chain of dense layers on CPUs", network, kernel)
    except MissingDependencyError as error:
        if asked == "compiled":
            raise
        second = _choose_traced(config, ranks, model, example, target_weights, asked, f"the slower one: {error}")
        return replace(second, is_second_best=True)


def _choose_traced(
    config: RunConfig, ranks: Ranks, model: nn.Module, example: Slice, target_weights: tuple[float, ...], asked: str,
    reason: str,
) -> EngineChoice:  # fmt: skip
    """Return the traced engine, or the eager one where the network cannot be recorded on some rank. Collective."""
    gradient = record_gradient(config, ranks, model, example, target_weights)
    if not isinstance(gradient, str):
        return EngineChoice("traced", reason, gradient=gradient)
    if asked == "traced":
        raise ConfigError(f"training.engine=traced: {gradient}; use training.engine=auto")
    return EngineChoice("eager", gradient)


def requested_engine(config: RunConfig) -> str:
    """Return `training.engine`, or what `distributed.strategy` means by it."""
    if config.training.engine == "auto" and config.distributed.strategy == "ddp":
        return "ddp"
    return config.training.engine


def _not_compilable(config: RunConfig, device: torch.device, model: nn.Module, num_rows: int) -> str | None:
    """Say what the compiled step lacks for this run, whose microbatches have `num_rows`; None where it serves."""
    if (obstacle := needs_autograd(config, device)) is not None:
        return obstacle
    chain = dense_chain_of(model)
    if chain is None:
        return "the network is no plain chain of dense layers"
    if max(chain.sizes) > LARGEST_COMPILED_WIDTH:
        return f"a layer is wider than {LARGEST_COMPILED_WIDTH}"
    if not chain.has_batch_norm:
        return None
    if config.distributed.sync_batch_norm:
        return "distributed.sync_batch_norm=true is autograd's"
    if config.training.gradient_accumulation_steps > 1:
        return "batch norm of training.gradient_accumulation_steps is autograd's"
    return f"batch norm over more than {MOST_NORM_ROWS} rows is autograd's" if num_rows > MOST_NORM_ROWS else None


def _load_everywhere(ranks: Ranks, network: DenseNetwork, instruction_set: str, loaded: Kernels) -> ctypes.CDLL:
    if (network, instruction_set) not in loaded:
        loaded[network, instruction_set] = _load_new(ranks, network, instruction_set)
    return loaded[network, instruction_set]


def _load_new(ranks: Ranks, network: DenseNetwork, instruction_set: str) -> ctypes.CDLL:
    ranks.starting.now("compiling the training step for this network (once; it is kept)")
    # The root builds first: on one file system the others find the kernel ready, and the compiler runs once.
    say_note = functools.partial(_say_note, ranks)
    ranks.on_root(lambda: build_kernel(network, instruction_set, say_note))
    return ranks.on_all_ranks(lambda: load_kernel(network, instruction_set))


def _say_note(ranks: Ranks, line: str) -> None:
    ranks.say(f"note: {line}", error=True)


def dense_network_of(config: RunConfig, model: nn.Module, num_rows: int = 0) -> DenseNetwork:
    """Describe a chain of dense layers to the kernel; `num_rows` of a microbatch count for batch norm."""
    chain = dense_chain_of(model)
    if chain is None:
        raise TypeError(f"{type(model).__name__} is no chain of dense layers")
    hidden, output = (name.replace("none", "identity") for name in (chain.hidden_activation, chain.output_activation))
    loss, dtype = config.training.loss_function, torch_dtype(config)
    # Few sizes, so that one kernel serves for similar batches.
    norm_rows = 1 << max(num_rows - 1, 0).bit_length() if chain.has_batch_norm else 0
    layers = chain.dropout, norm_rows, chain.has_layer_norm, chain.is_residual
    return DenseNetwork(chain.sizes, hidden, output, loss, dtype, *layers)


def check_strategy(config: RunConfig, world_size: int) -> None:
    """Raise LaunchError where `single` or `dp`, which are one process each, meet several ranks."""
    strategy = config.distributed.strategy
    if strategy in ("single", "dp") and world_size > 1:
        raise LaunchError(
            f"distributed.strategy={strategy}: is one process, this run has {world_size} ranks; start one, or give "
            "distributed.strategy=auto"
        )


def strategy_notices(config: RunConfig, engine: str) -> list[str]:
    """Return a line for each option of DistributedDataParallel that is set in a run without it."""
    defaults = DistributedSection()
    if engine == "ddp":
        return []
    return [
        f"distributed.{key}={show_value(getattr(config.distributed, key))}: an option of DistributedDataParallel, of "
        "no effect without distributed.strategy=ddp"
        for key in _OF_DDP_ONLY
        if getattr(config.distributed, key) != getattr(defaults, key)
    ]


def set_switches(training: TrainingSection) -> None:
    """Set what is torch's own, for the whole process: deterministic algorithms, TensorFloat32 products."""
    # Asking for what is so already would load torch's compiler: a second or two on each rank.
    if torch.are_deterministic_algorithms_enabled() != training.deterministic:
        torch.use_deterministic_algorithms(training.deterministic)
    torch.backends.cuda.matmul.allow_tf32 = training.allow_tf32
    torch.backends.cudnn.allow_tf32 = training.allow_tf32
