"""Which step engine a run uses, and why: decided from things that do not depend on the number of ranks.

Also what `distributed.strategy` asks of the launch, and the switches of torch that a run sets for its whole process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from mpitrain.comm.ranks import Ranks
from mpitrain.config import DistributedSection, RunConfig, TrainingSection
from mpitrain.config.yaml import show_value
from mpitrain.data.dataset.batches import Slice
from mpitrain.data.open_dataset import torch_dtype
from mpitrain.errors import ConfigError, LaunchError, MissingDependencyError
from mpitrain.models.batch_norm import batch_norm_layers
from mpitrain.models.mlp import dense_chain_of
from mpitrain.train.compiled.build import DenseNetwork, build_kernel, load_kernel
from mpitrain.train.compiled.engine import CompiledEngine
from mpitrain.train.engines.contract import StepEngine
from mpitrain.train.engines.cuda_graph import CudaGraphEngine
from mpitrain.train.engines.ddp import DdpEngine
from mpitrain.train.engines.eager import EagerEngine
from mpitrain.train.engines.reference import ReferenceEngine
from mpitrain.train.engines.standard import EngineInputs
from mpitrain.train.traced.engine import TracedEngine
from mpitrain.train.traced.gradient import NotTraceableError, TracedGradient

# Wider layers spend their time in products that torch's libraries do better.
LARGEST_COMPILED_WIDTH = 512
_SAME_ON_ANY_CPU: frozenset[str] = frozenset()
_OF_DDP_ONLY = (
    "find_unused_parameters", "gradient_as_bucket_view", "broadcast_buffers", "bucket_cap_mb", "static_graph",
)  # fmt: skip


@dataclass(frozen=True)
class EngineChoice:
    """The engine's name, why it was chosen, and what the compiled or the traced one needs."""

    name: str
    reason: str
    network: DenseNetwork | None = None
    kernel: ctypes.CDLL | None = None
    gradient: TracedGradient | None = None
    is_second_best: bool = False

    @property
    def words(self) -> str:
        """The engine, and why."""
        return f"{self.name} ({self.reason})" if self.reason else self.name

    @property
    def same_on_any_cpu(self) -> bool:
        """True where the engine promises the same bits on CPUs of all kinds."""
        return self.name in _SAME_ON_ANY_CPU

    @property
    def notices(self) -> tuple[str, ...]:
        """What the user should know: that another engine would have been faster."""
        return (f"training.engine={self.name}, {self.reason}",) if self.is_second_best else ()

    def build(self, inputs: EngineInputs) -> StepEngine:
        """Return the engine. Collective for `ddp` and `cuda_graph`."""
        if self.network is not None and self.kernel is not None:
            return CompiledEngine(inputs, self.network, self.kernel)
        if self.gradient is not None:
            return TracedEngine(inputs, self.gradient)
        engines: dict[str, Callable[[EngineInputs], StepEngine]] = {
            "reference": ReferenceEngine,
            "eager": EagerEngine,
            "ddp": DdpEngine,
            "cuda_graph": CudaGraphEngine,
        }
        return engines[self.name](inputs)


def choose_engine(
    config: RunConfig, ranks: Ranks, model: nn.Module, example: Slice, resumed_engine: str | None
) -> EngineChoice:
    """Choose by `training.engine`; `auto` keeps the engine of the resumed run, else takes the fastest. Collective.

    `example` is a microbatch of this run: its shapes count. `compiled` is for chains of dense layers, `traced` for any
    other network that does the same in each step, `eager` for the rest.

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
    obstacle = _not_compilable(config, ranks.device, model)
    if asked == "compiled" and obstacle is not None:
        raise ConfigError(f"training.engine=compiled: {obstacle}; use training.engine=auto")
    if asked == "traced" or obstacle is not None:
        return _choose_traced(config, ranks, model, example, asked, obstacle or "asked for")
    network = dense_network_of(config, model)
    try:
        return EngineChoice("compiled", "a chain of dense layers on CPUs", network, _load_everywhere(ranks, network))
    except MissingDependencyError as error:
        if asked == "compiled":
            raise
        second = _choose_traced(config, ranks, model, example, asked, f"the slower one: {error}")
        return replace(second, is_second_best=True)


def _choose_traced(
    config: RunConfig, ranks: Ranks, model: nn.Module, example: Slice, asked: str, reason: str
) -> EngineChoice:
    """Return the traced engine, or the eager one where the network cannot be recorded on some rank. Collective."""
    gradient, lacking = None, _not_traceable(config, ranks.device, model)
    if lacking is None:
        gradient, lacking = _record(model, config.training.loss_function, example)
        lacking = next(filter(None, ranks.gather_object(lacking)), None)
    if lacking is None:
        return EngineChoice("traced", reason, gradient=gradient)
    if asked == "traced":
        raise ConfigError(f"training.engine=traced: {lacking}; use training.engine=auto")
    return EngineChoice("eager", lacking)


def _record(model: nn.Module, loss_name: str, example: Slice) -> tuple[TracedGradient | None, str | None]:
    try:
        return TracedGradient(model, loss_name, example), None
    except NotTraceableError as error:
        return None, f"the network cannot be traced: {error}"


def requested_engine(config: RunConfig) -> str:
    """Return `training.engine`, or what `distributed.strategy` means by it."""
    if config.training.engine == "auto" and config.distributed.strategy == "ddp":
        return "ddp"
    return config.training.engine


def _not_compilable(config: RunConfig, device: torch.device, model: nn.Module) -> str | None:
    """Say what the compiled step lacks for this run; None where it serves."""
    if (obstacle := _needs_autograd(config, device)) is not None:
        return obstacle
    chain = dense_chain_of(model)
    if chain is None:
        return "the network is no plain chain of dense layers"
    if max(chain.sizes) > LARGEST_COMPILED_WIDTH:
        return f"a layer is wider than {LARGEST_COMPILED_WIDTH}"
    return None


def _not_traceable(config: RunConfig, device: torch.device, model: nn.Module) -> str | None:
    """Say what the traced step lacks for this run, whatever the network's forward does; None where it serves."""
    if (obstacle := _needs_autograd(config, device)) is not None:
        return obstacle
    if config.training.gradient_accumulation_steps > 1:
        return "training.gradient_accumulation_steps is autograd's"
    return "batch norm adds up over the microbatches" if batch_norm_layers(model) else None


def _needs_autograd(config: RunConfig, device: torch.device) -> str | None:
    if device.type != "cpu":
        return "compiled steps run on CPUs"
    for key in ("use_amp", "torch_compile", "gradient_checkpointing"):
        if getattr(config.training, key):
            return f"training.{key}=true is autograd's"
    if config.distributed.strategy == "dp":
        return "distributed.strategy=dp is autograd's"
    return None


def _load_everywhere(ranks: Ranks, network: DenseNetwork) -> ctypes.CDLL:
    ranks.starting.now("compiling the training step for this network (once; it is kept)")
    # The root builds first: on one file system the others find the kernel ready, and the compiler runs once.
    ranks.on_root(lambda: build_kernel(network, lambda line: ranks.say(f"note: {line}", error=True)))
    return ranks.on_all_ranks(lambda: load_kernel(network))


def dense_network_of(config: RunConfig, model: nn.Module) -> DenseNetwork:
    """Describe a chain of dense layers to the kernel."""
    chain = dense_chain_of(model)
    if chain is None:
        raise TypeError(f"{type(model).__name__} is no chain of dense layers")
    hidden, output = (name.replace("none", "identity") for name in (chain.hidden_activation, chain.output_activation))
    return DenseNetwork(chain.sizes, hidden, output, config.training.loss_function, torch_dtype(config))


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
