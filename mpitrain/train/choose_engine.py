"""Which step engine a run uses, and why: decided from things that do not depend on the number of ranks.

Also what `distributed.strategy` asks of the launch, and the switches of torch that a run sets for its whole process.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from typing import Any

from mpitrain.cluster import detect_cpu
from mpitrain.cluster.cpu.compiler_flags import fuses_products
from mpitrain.cluster.cpu.mixture import describe_mixture
from mpitrain.comm import Device, Ranks
from mpitrain.config import DistributedSection, TrainingSection, show_value
from mpitrain.data import Microbatch
from mpitrain.errors import ConfigError, LaunchError, MissingDependencyError
from mpitrain.models.kinds import chain_of, graph_of
from mpitrain.train.compiled.build import DenseNetwork, KernelNetwork, build_kernel, load_kernel
from mpitrain.train.engine_choice import EngineChoice
from mpitrain.train.needs import EngineRequest

# Batch norm needs all rows of a microbatch at once, with their activations; more would not stay in the CPU's caches.
MOST_NORM_ROWS = 4096
# Wider layers spend their time in products that torch's libraries do better.
LARGEST_COMPILED_WIDTH = 512
# Beyond it the products take most of a step, whichever engine computes them.
LARGEST_SLOWED_WIDTH = 256
# Up to it one core beside a GPU was faster with batches of 64 to 1024, and with 16,384 no more than twice as slow.
LARGEST_WIDTH_FOR_CPUS = 64
Kernels = dict[tuple[KernelNetwork, str], ctypes.CDLL]
"""Loaded kernels by network and `compute.instruction_set`."""
_OF_DDP_ONLY = (
    "find_unused_parameters", "gradient_as_bucket_view", "broadcast_buffers", "bucket_cap_mb", "static_graph",
)  # fmt: skip


@dataclass(frozen=True)
class Obstacle:
    """Why the compiled engine cannot be used. `is_second_best`: it could elsewhere, but not on this machine."""

    reason: str
    is_second_best: bool = False


def choose_compiled(
    request: EngineRequest, ranks: Ranks, model: Any, num_rows: int, kernels: Kernels
) -> EngineChoice | Obstacle:
    """Return the compiled engine for a `DenseModel` or a module, or what is in its way. Collective. Loads no torch.

    A microbatch has `num_rows`, which count for batch norm. `kernels`, the same on all ranks, are those that are
    loaded. Raises ConfigError or MissingDependencyError, on all ranks, when the asked engine cannot serve here.
    """
    asked = request.engine
    if request.semantics == "reference" or asked not in ("auto", "compiled"):
        return Obstacle(request.engine_setting)
    if graph_of(model) is not None:
        return Obstacle("the size of its fields decides")  # see choose_torchs
    obstacle = what_cannot_be_compiled(request, ranks.device, model, num_rows)
    if asked == "compiled" and obstacle is not None:
        raise ConfigError(f"training.engine=compiled: {obstacle}; use training.engine=auto")
    if obstacle is not None:
        return Obstacle(obstacle)
    network = dense_network_of(request.training, model, num_rows)
    return _built(request, ranks, network, "a chain of dense layers on CPUs", kernels)


def _built(
    request: EngineRequest, ranks: Ranks, network: KernelNetwork, why: str, kernels: Kernels
) -> EngineChoice | Obstacle:
    """Return the compiled engine, or that it cannot be built. Collective."""
    try:
        kernel = _load_everywhere(ranks, network, request.instruction_set, kernels)
        return EngineChoice("compiled", why, network, kernel)
    except MissingDependencyError as error:
        if request.engine == "compiled":
            raise
        return Obstacle(f"the slower one: {error}", is_second_best=True)


def _choose_for_fields(
    request: EngineRequest, ranks: Ranks, graph: Any, example: Microbatch, kernels: Kernels
) -> EngineChoice | Obstacle:
    """Return the compiled engine of a cnn or unet, or what is in its way. Collective. Raises as `choose_compiled`."""
    from mpitrain.train.compiled.fields import FieldNetwork, what_cannot_be_convolved

    training, shape = request.training, tuple(example.inputs.shape)
    loss, dtype = training.loss_function.kernel, training.dtype
    obstacle = _what_no_kernel_has(request, ranks.device) or what_cannot_be_convolved(request, graph, shape, dtype)
    if obstacle is not None or loss is None:
        if request.engine == "compiled":
            raise ConfigError(f"training.engine=compiled: {obstacle}; use training.engine=auto")
        return Obstacle(str(obstacle))
    network = FieldNetwork(graph, (shape[2], shape[3]), loss, dtype)
    return _built(request, ranks, network, "convolutions on CPUs", kernels)


def choose_torchs(
    request: EngineRequest, ranks: Ranks, model: Any, example: Microbatch, target_weights: tuple[float, ...],
    obstacle: Obstacle, kernels: Kernels,
) -> EngineChoice:  # fmt: skip
    """Return an engine for one of torch's modules, on tensors. Collective. Raises as `choose_compiled`.

    `training.engine` decides, auto by the engine of the resumed run, else for the fastest. `compiled` is for chains of
    dense layers, cnn and unet, `traced` for any other network that does the same in each step, `eager` for the rest.
    """
    if request.semantics == "reference":
        return EngineChoice("reference", "")
    asked = request.engine
    graph = graph_of(model) if asked in ("auto", "compiled") else None
    if graph is not None:
        found = _choose_for_fields(request, ranks, graph, example, kernels)
        if isinstance(found, EngineChoice):
            return found
        obstacle = found
    if asked == "cuda_graph" and ranks.device.type != "cuda":
        raise ConfigError("training.engine=cuda_graph: needs a GPU, this run is on CPUs; use training.engine=auto")
    optimizer = request.training.optimizer
    if asked == "cuda_graph" and optimizer.graph_flag is None:
        raise ConfigError(
            f"training.engine=cuda_graph: records no step of training.optimizer.type={optimizer.name}; use "
            "training.engine=auto"
        )
    if asked in ("eager", "ddp", "cuda_graph"):
        return EngineChoice(asked, request.engine_setting)
    choice = _choose_traced(request, ranks, model, example, target_weights, obstacle.reason)
    return replace(choice, is_second_best=obstacle.is_second_best)


def _choose_traced(
    request: EngineRequest, ranks: Ranks, model: Any, example: Microbatch, target_weights: tuple[float, ...],
    reason: str,
) -> EngineChoice:  # fmt: skip
    """Return the traced engine, or the eager one where the network cannot be recorded on some rank. Collective."""
    from mpitrain.train.traced.gradient import record_gradient

    gradient = record_gradient(request, ranks, model, example, target_weights)
    if not isinstance(gradient, str):
        return EngineChoice("traced", reason, gradient=gradient)
    if request.engine == "traced":
        raise ConfigError(f"training.engine=traced: {gradient}; use training.engine=auto")
    return EngineChoice("eager", gradient)


def _what_no_kernel_has(request: EngineRequest, device: Device) -> str | None:
    if (obstacle := request.needs_autograd(device)) is not None:
        return obstacle
    if request.training.loss_function.kernel is None:
        return f"training.loss_function={request.training.loss_function.name} has no compiled kernel"
    return None


def what_cannot_be_compiled(request: EngineRequest, device: Device, model: Any, num_rows: int) -> str | None:
    """Return why the compiled step cannot compute this run, whose microbatches have `num_rows`; None where it can."""
    if (obstacle := _what_no_kernel_has(request, device)) is not None:
        return obstacle
    chain = chain_of(model)
    if chain is None:
        return "the network is neither a plain chain of dense layers nor a plain cnn or unet"
    if max(chain.sizes) > LARGEST_COMPILED_WIDTH:
        return f"a layer is wider than {LARGEST_COMPILED_WIDTH}"
    if not chain.has_batch_norm:
        return None
    if request.distributed.sync_batch_norm:
        return "distributed.sync_batch_norm=true needs autograd"
    if request.training.gradient_accumulation_steps > 1:
        return "batch norm of training.gradient_accumulation_steps needs autograd"
    return f"batch norm over more than {MOST_NORM_ROWS} rows needs autograd" if num_rows > MOST_NORM_ROWS else None


def _load_everywhere(ranks: Ranks, network: KernelNetwork, instruction_set: str, loaded: Kernels) -> ctypes.CDLL:
    key = network, instruction_set
    if key not in loaded:
        ranks.starting.now("compiling the training step for this network (once; it is kept)")
        # The root builds first: on one file system the others find the kernel ready, and the compiler runs once.
        ranks.on_root(lambda: build_kernel(*key, ranks.note))
        loaded[key] = ranks.on_all_ranks(lambda: load_kernel(*key))
    return loaded[key]


def dense_network_of(training: TrainingSection, model: Any, num_rows: int = 0) -> DenseNetwork:
    """Describe a chain of dense layers to the kernel; `num_rows` of a microbatch count for batch norm."""
    chain = chain_of(model)
    if chain is None:
        raise TypeError(f"{type(model).__name__} is no chain of dense layers")
    hidden, output = (name.replace("none", "identity") for name in (chain.hidden_activation, chain.output_activation))
    loss, dtype = training.loss_function.kernel, training.dtype
    # Few sizes, so that one kernel serves for similar batches.
    norm_rows = 1 << max(num_rows - 1, 0).bit_length() if chain.has_batch_norm else 0
    layers = chain.dropout, norm_rows, chain.has_layer_norm, chain.is_residual
    return DenseNetwork(chain.sizes, hidden, output, loss, dtype, *layers)


def check_strategy(strategy: str, world_size: int) -> None:
    """Raise LaunchError where `single` or `dp`, which are one process each, meet several ranks."""
    if strategy in ("single", "dp") and world_size > 1:
        raise LaunchError(
            f"distributed.strategy={strategy}: is one process, this run has {world_size} ranks; start one, or give "
            "distributed.strategy=auto"
        )


def slow_step_notices(request: EngineRequest, choice: EngineChoice, model: Any, device: Device) -> list[str]:
    """Return a line where a GPU, or a switch on CPUs, keeps a small network from the compiled step.

    On CPUs networks 7-16-1 to 7-256-256-1 with batches of 64 to 4096 took 2 to 400 times as long a step; a step of
    7-16-1 with a batch of 64 took 1.9 ms on an H200, 0.36 ms as a CUDA graph, and 12 us on one core beside it.
    """
    chain, cause = chain_of(model), request.needs_autograd(device)
    if choice.name != "eager" or cause is None or chain is None:
        return []
    largest = LARGEST_SLOWED_WIDTH if device.type == "cpu" else LARGEST_WIDTH_FOR_CPUS
    if request.training.optimizer.kernel is None or max(chain.sizes) > largest:
        return []
    if device.type != "cpu":
        return [
            "a GPU's step of a network this small takes up to 150 times as long as a CPU's compiled one: give "
            "compute.device=cpu, or training.engine=cuda_graph for a shorter one"
        ]
    return [f"{cause}: on CPUs a step of a network this small takes up to 400 times as long with it; leave it out here"]


def strategy_notices(distributed: DistributedSection, engine: str) -> list[str]:
    """Return a line for each option of DistributedDataParallel that is set in a run without it."""
    defaults = DistributedSection()
    if engine == "ddp":
        return []
    return [
        f"distributed.{key}={show_value(getattr(distributed, key))}: an option of DistributedDataParallel, of "
        "no effect without distributed.strategy=ddp"
        for key in _OF_DDP_ONLY
        if getattr(distributed, key) != getattr(defaults, key)
    ]


def set_switches(training: TrainingSection) -> None:
    """Set torch's process-wide switches: deterministic algorithms, TensorFloat32 products."""
    import torch

    # Asking for what is so already would load torch's compiler: a second or two on each rank.
    if torch.are_deterministic_algorithms_enabled() != training.deterministic:
        torch.use_deterministic_algorithms(training.deterministic)
    torch.backends.cuda.matmul.allow_tf32 = training.allow_tf32
    torch.backends.cudnn.allow_tf32 = training.allow_tf32


def cpu_notices(instruction_set: str, choice: EngineChoice, ranks: Ranks) -> list[str]:
    """Return notices of what makes a run's bits depend on the kind of CPU, or makes avoiding that slow. Collective."""
    notices = _fusing_notices(instruction_set, choice.name)
    mixture = describe_mixture(ranks.gather_object(detect_cpu()))
    if mixture is None or choice.name == "compiled":  # which promises the same bits on all kinds
        return notices
    return [
        *notices,
        f"the ranks are on several kinds of CPU ({mixture}): training.engine={choice.name} promises the same bits on "
        "one kind only; ranks that drift apart end the run, so give it nodes of one kind",
    ]


def _fusing_notices(instruction_set: str, engine: str) -> list[str]:
    if engine != "compiled" or fuses_products(detect_cpu(), instruction_set):
        return []
    return [
        f"compute.instruction_set={instruction_set}: without fused multiply-add instructions, which are "
        "computed exactly in several: the same results, up to 20 times slower"
    ]
