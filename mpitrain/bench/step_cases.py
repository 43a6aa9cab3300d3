"""Cases of `mpitrain bench step`: networks, engines, and their combinations. Loads no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mpitrain.errors import UserError

FEATURES, OUTPUTS = 7, 1
DEFAULT_SAMPLES = 65536
_MOST_STEPS, _FEWEST_STEPS, _ROWS_A_RUN = 4000, 8, 400_000
NETWORK_HELP = f"icenet, or the layer sizes of an mlp with relu, such as {FEATURES}-64-64-{OUTPUTS}"
_GRID = (160, 240)
_LAYERS = {
    "dropout": "model.dropout=0.1",
    **{name: f"model.{name}=true" for name in ("batch_norm", "layer_norm", "residual")},
}
_USERS = {"residual": "Residual", "layer_norm": "LayerNorm"}
_OF_FIELDS = {"cnn": 2, "unet": 2}
STEP_NETWORK_HELP = (
    f"{NETWORK_HELP}; layer sizes followed by +{' or +'.join(_LAYERS)}; "
    f"{' or '.join(_USERS)}: a user's network of 64 units; "
    f"{' or '.join(_OF_FIELDS)}: 16 channels on fields of {_GRID[0]} x {_GRID[1]} points"
)


@dataclass(frozen=True)
class Network:
    """A network; the trainer builds it from `settings`.

    A chain of dense layers has `sizes` and activations; other networks have no sizes. `sample_shape` is the shape of
    the inputs: (F,), or (F, H, W) for fields. For a network from a user's settings, `config` is their file, and
    `input_names` and `target_names` are the variables of their data.
    """

    name: str
    sizes: tuple[int, ...]
    hidden_activation: str
    output_activation: str
    settings: tuple[str, ...]
    sample_shape: tuple[int, ...] = (FEATURES,)
    config: str | None = None
    input_names: tuple[str, ...] = ()
    target_names: tuple[str, ...] = ()

    @property
    def is_users(self) -> bool:
        """Whether it comes from a user's settings, which then also set everything that `StepCase.settings` omits."""
        return bool(self.input_names)

    @property
    def is_chain(self) -> bool:
        """Whether it is a chain of dense layers, which the C++ program supports too."""
        return bool(self.sizes)

    @property
    def has_fields(self) -> bool:
        """Whether a sample is a field."""
        return len(self.sample_shape) > 1


@dataclass(frozen=True)
class Engine:
    """One way to compute a training step.

    `kind`: "ours" (an engine of this package, from `settings`), "distributed loop" or "single loop" (plain PyTorch, see
    baselines.py), "threads" (one process with as many threads as ranks: JAX, see jax_scan.py, and torch.compile), "cpp"
    (the C++ program) or "exchange" (no step: the message that two nodes exchange).
    `cpp_engine`: torch or plain. `cpp_reduction`: fixed (virtual ranks, summed in their tree), any (one microbatch per
    rank, one Allreduce) or original (one microbatch per rank, one Allreduce per parameter, libtorch's Adam).
    """

    name: str
    kind: str
    settings: tuple[str, ...] = ()
    cpp_engine: str = ""
    cpp_reduction: str = ""
    note: str = ""


def _ours(engine: str, reduction: str) -> Engine:
    settings = (f"training.engine={engine}", f"training.reduction={reduction}")
    return Engine(f"{engine}-{reduction}", "ours", settings, note=f"training.engine={engine}, reduction={reduction}")


def _cpp(engine: str, reduction: str, note: str) -> Engine:
    return Engine(f"cpp-{engine}-{reduction}", "cpp", cpp_engine=engine, cpp_reduction=reduction, note=note)


_FIXED = "microbatches summed in the fixed tree"
_ENGINES = (
    _ours("compiled", "any"),
    _ours("compiled", "fixed"),
    _ours("traced", "any"),
    _ours("traced", "fixed"),
    _ours("eager", "any"),
    _ours("eager", "fixed"),
    _ours("ddp", "any"),
    Engine("ddp-loop", "distributed loop", note="plain PyTorch: DataLoader, DistributedDataParallel over gloo, Adam"),
    Engine(
        "torch-loop", "single loop", note="plain PyTorch in one process: the whole batch in one pass, the faster Adam"
    ),
    Engine("torch-compile", "threads", note="torch.compile and Adam(fused=True), one process, a thread per rank"),
    Engine("jax-scan", "threads", note="JAX: an epoch is one lax.scan in one jit, one process, a thread per rank"),
    _cpp("torch", "original", "C++ on libtorch, as in the original: one Allreduce per parameter, libtorch's Adam"),
    _cpp("torch", "any", "C++ on libtorch, one microbatch per rank and one Allreduce"),
    _cpp("torch", "fixed", f"C++ on libtorch, {_FIXED}"),
    _cpp("plain", "any", "C++ without libraries, one microbatch per rank and one Allreduce"),
    _cpp("plain", "fixed", f"C++ without libraries, {_FIXED}"),
)
ENGINES = {engine.name: engine for engine in _ENGINES}
_FEWER = ("ddp-any", "cpp-torch-any", "traced-any", "traced-fixed", "torch-compile", "jax-scan")
DEFAULT_ENGINES = tuple(name for name in ENGINES if name not in _FEWER)
DEFAULT_BASELINE = "compiled-any"
EXCHANGE = Engine("exchange", "exchange", note="no step: one message of a step's size between two nodes")
# Engines for networks that are not plain chains: the compiled engine supports some of them, the C++ program none.
OTHER_ENGINES = (
    "compiled-any",
    "compiled-fixed",
    "traced-any",
    "traced-fixed",
    "eager-fixed",
    "ddp-loop",
    "torch-loop",
)
OTHER_BASELINE = "torch-loop"


@dataclass(frozen=True)
class StepCase:
    """One engine on one network at one batch size on one number of ranks.

    `num_nodes`: number of simulated nodes; all ranks are on one machine. `instruction_set`: that of the compiled step,
    as in `compute.instruction_set`.
    """

    network: Network
    global_batch_size: int | str
    num_ranks: int
    engine: Engine
    num_samples: int
    num_steps: int
    num_warmup_steps: int
    num_nodes: int = 1
    instruction_set: str = "native"

    @property
    def name(self) -> str:
        """The engine, and the number of nodes if there are several."""
        return self.engine.name if self.num_nodes == 1 else f"{self.engine.name}, {self.num_nodes} nodes"

    @property
    def key(self) -> tuple[str, str, int, str]:
        """Unique key of this case: network, batch size, number of ranks, name."""
        return (self.network.name, str(self.global_batch_size), self.num_ranks, self.name)

    @property
    def settings(self) -> list[str]:
        """The settings from which the trainer, or the ranks of a plain PyTorch loop, are built."""
        batch = f"training.global_batch_size={self.global_batch_size}"
        target = f"compute.instruction_set={self.instruction_set}"
        if self.network.is_users:
            return [*self.network.settings, *self.engine.settings, batch]
        backend = "gloo" if self.engine.kind == "distributed loop" else "auto"
        return [
            *self.network.settings,
            *self.engine.settings,
            batch,
            *("training.threads_per_rank=1", "data.validation_split=0", "compute.device=cpu"),
            f"compute.backend={backend}",
            *([] if self.instruction_set == "native" else [target]),
        ]


@dataclass(frozen=True)
class ScaledRun:
    """Network and engine for `bench scaling`; `batch_size`: samples of each rank (weak scaling) or of all (strong)."""

    network: Network
    engine: Engine
    batch_size: int

    def case(self, batch_size: int, num_ranks: int, steps: int | None = None, warm_up: int | None = None) -> StepCase:
        """Return a case of this run, with as many samples per rank and as many steps as in `bench step`."""
        num_samples = default_samples(self.batch_size, self.network) * num_ranks
        return timed_case(self.network, batch_size, num_ranks, self.engine, num_samples, steps, warm_up)


def timed_case(
    network: Network, batch_size: int | str, num_ranks: int, engine: Engine, num_samples: int, steps: int | None,
    warm_up: int | None,
) -> StepCase:  # fmt: skip
    """Return a case with `steps` and `warm_up` steps; None means `step_count`, and a tenth of the steps, at least 2."""
    steps = steps or step_count(batch_size, num_samples)
    return StepCase(network, batch_size, num_ranks, engine, num_samples, steps, warm_up or max(2, steps // 10))


def network_of(name: str, allowed: str = NETWORK_HELP) -> Network:
    """Return the chain of dense layers called `name` on the command line. Raises UserError with the `allowed` names."""
    if name == "icenet":
        return Network(name, (FEATURES, 16, OUTPUTS), "none", "sigmoid", ("model.name=icenet", "model.hidden_size=16"))
    texts = name.split("-")
    sizes = tuple(int(text) for text in texts if text.isdecimal())
    hidden = set(sizes[1:-1])
    is_chain = len(sizes) == len(texts) >= 3 and (sizes[0], sizes[-1]) == (FEATURES, OUTPUTS)
    if not is_chain or len(hidden) != 1 or min(sizes) < 1:
        raise UserError(
            f"--networks {name}: give {allowed} ({FEATURES} inputs, {OUTPUTS} output, hidden layers of one size)"
        )
    settings = (
        "model.name=mlp",
        f"model.hidden_layers={len(sizes) - 2}",
        f"model.hidden_size={sizes[1]}",
        *("model.hidden_activation=relu", "model.output_activation=none"),
    )
    return Network(name, sizes, "relu", "none", settings)


def step_network_of(name: str) -> Network:
    """Return the network, a chain or another one, called `name` on the command line. Raises UserError."""
    if name in _USERS:
        return Network(name, (), "", "", (f"model.name=mpitrain.bench.networks_of_users:{_USERS[name]}",))
    if name in _OF_FIELDS:
        settings = (f"model.name={name}", "model.hidden_size=16", f"model.hidden_layers={_OF_FIELDS[name]}")
        return Network(name, (), "", "", (*settings, "data.samples=fields"), (FEATURES, *_GRID))
    chain, plus, layer = name.partition("+")
    if not plus:
        return network_of(name, STEP_NETWORK_HELP)
    if layer not in _LAYERS or chain == "icenet":
        raise UserError(f"--networks {name}: give {STEP_NETWORK_HELP}")
    return Network(name, (), "", "", (*network_of(chain, STEP_NETWORK_HELP).settings, _LAYERS[layer]))


def engines_of(names: Sequence[str]) -> list[Engine]:
    """Return the engines of these names. Raises UserError."""
    for name in names:
        if name not in ENGINES:
            raise UserError(f"--engines {name}: unknown; allowed are {', '.join(ENGINES)}")
    return [ENGINES[name] for name in names]


def default_samples(batch_size: int, network: Network) -> int:
    """Return the default number of samples: two batches of fields, otherwise four batches but at least 65536."""
    return 2 * batch_size if network.has_fields else max(DEFAULT_SAMPLES, 4 * batch_size)


def step_count(global_batch_size: int | str, num_samples: int) -> int:
    """Return the default number of timed steps: fewer for large batches, whose steps take longer."""
    rows = num_samples if global_batch_size == "full" else int(global_batch_size)
    return max(_FEWEST_STEPS, min(_MOST_STEPS, _ROWS_A_RUN // rows))
