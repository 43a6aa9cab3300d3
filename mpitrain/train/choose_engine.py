"""Choice of the step engine of a run, with its reason. The choice does not depend on the number of ranks.

Also the check of `distributed.strategy` against the number of ranks, and torch's process-wide switches.
"""

from __future__ import annotations

import ctypes
import itertools
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

# Batch norm needs the activations of all rows of a microbatch at once; those of more rows would not fit in the caches.
MOST_NORM_ROWS = 4096
# The kernel counts parameters in 32 bits.
MOST_COMPILED_PARAMETERS = 2**30
# In wider layers matrix products take most of a step with every engine: no notice of a slow step is given.
LARGEST_SLOWED_WIDTH = 256
# Up to this width one CPU core was faster than a GPU at batches of 64 to 1024, and at most twice as slow at 16,384.
LARGEST_WIDTH_FOR_CPUS = 64
Kernels = dict[tuple[KernelNetwork, str], ctypes.CDLL]
"""Loaded kernels by network and `compute.instruction_set`."""
_OF_DDP_ONLY = (
    "find_unused_parameters", "gradient_as_bucket_view", "broadcast_buffers", "bucket_cap_mb", "static_graph",
)  # fmt: skip


@dataclass(frozen=True)
class Obstacle:
    """The reason why the compiled engine cannot be used.

    `is_fallback`: another machine could use it, this one cannot build it.
    """

    reason: str
    is_fallback: bool = False


def choose_compiled(
    request: EngineRequest, ranks: Ranks, model: Any, num_rows: int, kernels: Kernels
) -> EngineChoice | Obstacle:
    """Return the compiled engine for a `DenseModel` or a module, or the obstacle to it. Collective. Imports no torch.

    `num_rows` is the number of rows of a microbatch; it matters for batch norm only. `kernels` holds the kernels
    loaded so far, the same on all ranks. Raises ConfigError or MissingDependencyError, on all ranks, if the
    requested engine cannot be used.
    """
    requested = request.engine
    if request.semantics == "reference" or requested not in ("auto", "compiled"):
        return Obstacle(request.engine_setting)
    if graph_of(model) is not None:
        return Obstacle("it depends on the size of the fields")  # choose_torch_engine replaces this obstacle
    obstacle = compiled_obstacle(request, ranks.device, model, num_rows)
    if requested == "compiled" and obstacle is not None:
        raise ConfigError(f"training.engine=compiled: {obstacle}; use training.engine=auto")
    if obstacle is not None:
        return Obstacle(obstacle)
    network = dense_network_of(request.training, model, num_rows)
    return _built(request, ranks, network, "a chain of dense layers on CPUs", kernels)


def _built(
    request: EngineRequest, ranks: Ranks, network: KernelNetwork, reason: str, kernels: Kernels
) -> EngineChoice | Obstacle:
    """Return the compiled engine, or an obstacle if it cannot be built. Collective."""
    try:
        kernel = _load_everywhere(ranks, network, request.instruction_set, kernels)
        return EngineChoice("compiled", reason, network, kernel)
    except MissingDependencyError as error:
        if request.engine == "compiled":
            raise
        return Obstacle(f"slower than the compiled engine: {error}", is_fallback=True)


def _choose_for_fields(
    request: EngineRequest, ranks: Ranks, graph: Any, example: Microbatch, kernels: Kernels
) -> EngineChoice | Obstacle:
    """Return the compiled engine of a cnn or unet, or the obstacle to it. Collective. Raises as `choose_compiled`."""
    from mpitrain.train.compiled.fields import FieldNetwork, convolution_obstacle

    training, shape = request.training, tuple(example.inputs.shape)
    loss, dtype = training.loss_function.kernel, training.dtype
    obstacle = _kernel_obstacle(request, ranks.device) or convolution_obstacle(request, graph, shape, dtype)
    if obstacle is not None or loss is None:
        if request.engine == "compiled":
            raise ConfigError(f"training.engine=compiled: {obstacle}; use training.engine=auto")
        return Obstacle(str(obstacle))
    network = FieldNetwork(graph, (shape[2], shape[3]), loss, dtype)
    return _built(request, ranks, network, "convolutions on CPUs", kernels)


def choose_torch_engine(
    request: EngineRequest, ranks: Ranks, model: Any, example: Microbatch, target_weights: tuple[float, ...],
    obstacle: Obstacle, kernels: Kernels,
) -> EngineChoice:  # fmt: skip
    """Return the engine for a torch module. Collective. Raises as `choose_compiled`.

    `training.engine` names it; auto keeps the engine of the resumed run, otherwise it selects the fastest: `compiled`
    for chains of dense layers, cnn and unet, `traced` for other networks whose operations are the same in each step,
    `eager` for all others.
    """
    if request.semantics == "reference":
        return EngineChoice("reference", "")
    requested = request.engine
    graph = graph_of(model) if requested in ("auto", "compiled") else None
    if graph is not None:
        found = _choose_for_fields(request, ranks, graph, example, kernels)
        if isinstance(found, EngineChoice):
            return found
        obstacle = found
    if requested == "cuda_graph" and ranks.device.type != "cuda":
        raise ConfigError("training.engine=cuda_graph: needs a GPU, this run is on CPUs; use training.engine=auto")
    optimizer = request.training.optimizer
    if requested == "cuda_graph" and optimizer.graph_flag is None:
        raise ConfigError(
            f"training.engine=cuda_graph: cannot record training.optimizer.type={optimizer.name}; use "
            "training.engine=auto"
        )
    if requested in ("eager", "ddp", "cuda_graph"):
        return EngineChoice(requested, request.engine_setting)
    choice = _choose_traced(request, ranks, model, example, target_weights, obstacle.reason)
    return replace(choice, is_fallback=obstacle.is_fallback)


def _choose_traced(
    request: EngineRequest, ranks: Ranks, model: Any, example: Microbatch, target_weights: tuple[float, ...],
    reason: str,
) -> EngineChoice:  # fmt: skip
    """Return the traced engine, or the eager one if any rank cannot record the network. Collective."""
    from mpitrain.train.traced.gradient import record_gradient

    gradient = record_gradient(request, ranks, model, example, target_weights)
    if not isinstance(gradient, str):
        return EngineChoice("traced", reason, gradient=gradient)
    if request.engine == "traced":
        raise ConfigError(f"training.engine=traced: {gradient}; use training.engine=auto")
    return EngineChoice("eager", gradient)


def _kernel_obstacle(request: EngineRequest, device: Device) -> str | None:
    if (obstacle := request.needs_autograd(device)) is not None:
        return obstacle
    if request.training.loss_function.kernel is None:
        return f"training.loss_function={request.training.loss_function.name} has no compiled kernel"
    return None


def compiled_obstacle(request: EngineRequest, device: Device, model: Any, num_rows: int) -> str | None:
    """Return the reason why the compiled step cannot train `model` on microbatches of `num_rows`; None if it can."""
    if (obstacle := _kernel_obstacle(request, device)) is not None:
        return obstacle
    chain = chain_of(model)
    if chain is None:
        return "the network is neither a plain chain of dense layers nor a plain cnn or unet"
    if sum(inputs * outputs for inputs, outputs in itertools.pairwise(chain.sizes)) > MOST_COMPILED_PARAMETERS:
        return f"it has more than {MOST_COMPILED_PARAMETERS:,} parameters"
    if not chain.has_batch_norm:
        return None
    if request.distributed.sync_batch_norm:
        return "distributed.sync_batch_norm=true needs autograd"
    if request.training.gradient_accumulation_steps > 1:
        return "batch norm with training.gradient_accumulation_steps needs autograd"
    return f"batch norm over more than {MOST_NORM_ROWS} rows needs autograd" if num_rows > MOST_NORM_ROWS else None


def _load_everywhere(ranks: Ranks, network: KernelNetwork, instruction_set: str, loaded: Kernels) -> ctypes.CDLL:
    key = network, instruction_set
    if key not in loaded:
        ranks.starting.now("compiling the training step for this network (once; it is kept)")
        # The root builds first: on a shared file system the other ranks then find the kernel in the cache, and the
        # compiler runs once.
        ranks.on_root(lambda: build_kernel(*key, ranks.note))
        loaded[key] = ranks.on_all_ranks(lambda: load_kernel(*key))
    return loaded[key]


def dense_network_of(training: TrainingSection, model: Any, num_rows: int = 0) -> DenseNetwork:
    """Return the kernel's description of a chain of dense layers; `num_rows`, of a microbatch, is for batch norm."""
    chain = chain_of(model)
    if chain is None:
        raise TypeError(f"{type(model).__name__} is not a chain of dense layers")
    hidden, output = (name.replace("none", "identity") for name in (chain.hidden_activation, chain.output_activation))
    loss, dtype = training.loss_function.kernel, training.dtype
    # Rounded up to a power of two, so that batches of similar size use the same kernel.
    norm_rows = 1 << max(num_rows - 1, 0).bit_length() if chain.has_batch_norm else 0
    layers = chain.dropout, norm_rows, chain.has_layer_norm, chain.is_residual
    return DenseNetwork(chain.sizes, hidden, output, loss, dtype, *layers)


def check_strategy(strategy: str, world_size: int) -> None:
    """Raise LaunchError if `strategy` is `single` or `dp`, which use one process, and there are several ranks."""
    if strategy in ("single", "dp") and world_size > 1:
        raise LaunchError(
            f"distributed.strategy={strategy}: needs one process, this run has {world_size} ranks; start one rank, or "
            "give distributed.strategy=auto"
        )


def slow_step_notices(request: EngineRequest, choice: EngineChoice, model: Any, device: Device) -> list[str]:
    """Return a notice if a small network cannot use the compiled step because of the GPU, or of a setting on CPUs.

    Measured on CPUs: eager steps of networks 7-16-1 to 7-256-256-1 with batches of 64 to 4096 took 2 to 400 times as
    long as compiled ones. A step of 7-16-1 with a batch of 64 took 1.9 ms on an H200, 0.36 ms as a CUDA graph there,
    and 12 us on one CPU core of the same machine.
    """
    chain, cause = chain_of(model), request.needs_autograd(device)
    if choice.name != "eager" or cause is None or chain is None:
        return []
    largest = LARGEST_SLOWED_WIDTH if device.type == "cpu" else LARGEST_WIDTH_FOR_CPUS
    if request.training.optimizer.kernel is None or max(chain.sizes) > largest:
        return []
    if device.type != "cpu":
        return [
            "a step of a network this small takes up to 150 times as long on a GPU as the compiled step on a CPU; give "
            "compute.device=cpu, or training.engine=cuda_graph for faster steps on the GPU"
        ]
    return [
        f"{cause}: on CPUs a step of a network this small takes up to 400 times as long as without it; remove this "
        "setting"
    ]


def strategy_notices(distributed: DistributedSection, engine: str) -> list[str]:
    """Return a notice for each option of DistributedDataParallel that is set in a run that does not use it."""
    defaults = DistributedSection()
    if engine == "ddp":
        return []
    return [
        f"distributed.{key}={show_value(getattr(distributed, key))}: an option of DistributedDataParallel, "
        "without effect unless distributed.strategy=ddp"
        for key in _OF_DDP_ONLY
        if getattr(distributed, key) != getattr(defaults, key)
    ]


def set_switches(training: TrainingSection) -> None:
    """Set torch's process-wide switches: deterministic algorithms, and matrix products in TensorFloat32."""
    import torch

    # Called only if the value changes: the call imports torch's compiler, which takes a second or two on each rank.
    if torch.are_deterministic_algorithms_enabled() != training.deterministic:
        torch.use_deterministic_algorithms(training.deterministic)
    torch.backends.cuda.matmul.allow_tf32 = training.allow_tf32
    torch.backends.cudnn.allow_tf32 = training.allow_tf32


def cpu_notices(instruction_set: str, choice: EngineChoice, ranks: Ranks) -> list[str]:
    """Return notices if a run's bits depend on the kind of CPU, or if avoiding this makes the run slow. Collective."""
    notices = _fusing_notices(instruction_set, choice.name)
    mixture = describe_mixture(ranks.gather_object(detect_cpu()))
    if mixture is None or choice.name == "compiled":  # the compiled engine gives the same bits on all kinds of CPU
        return notices
    return [
        *notices,
        f"the ranks are on several kinds of CPU ({mixture}): training.engine={choice.name} guarantees the same bits on "
        "one kind only, and the run ends if the ranks drift apart; use nodes of one kind",
    ]


def _fusing_notices(instruction_set: str, engine: str) -> list[str]:
    if engine != "compiled" or fuses_products(detect_cpu(), instruction_set):
        return []
    return [
        f"compute.instruction_set={instruction_set}: has no fused multiply-add instructions; they are emulated "
        "exactly: the same results, up to 20 times slower"
    ]
