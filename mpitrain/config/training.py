"""The sections `training`, `compute` and `distributed`: how the network is trained, where, and by which messages."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mpitrain.config.section import Count, CountOrZero, Momentum, NumberOrZero, PositiveNumber, PowerOfTwo, Section

LossWeights = Annotated[
    dict[str, NumberOrZero],
    Field(json_schema_extra={"allowed": "a mapping of targets to numbers, at least 0, such as {sst: 2, sss: 0.5}"}),
]


class OptimizerSection(Section):
    """The optimiser."""

    type: Literal["adam", "adamw", "sgd"] = "adam"
    """Which optimiser."""
    learning_rate: PositiveNumber = 0.001
    """Step length at the start."""
    weight_decay: NumberOrZero = 0.0
    """L2 penalty on the weights."""
    beta1: Momentum = 0.9
    """Decay of Adam's mean of gradients."""
    beta2: Momentum = 0.999
    """Decay of Adam's mean of squared gradients."""
    epsilon: PositiveNumber = 1e-8
    """Added to Adam's denominator."""
    momentum: Momentum = 0.0
    """Momentum of `sgd`."""


class SchedulerSection(Section):
    """How the learning rate changes from epoch to epoch."""

    type: Literal["step", "cosine", "plateau", "none"]
    """Which schedule; it must be named."""
    step_size: Count = 30
    """Epochs between two steps of `step`."""
    gamma: PositiveNumber = 0.5
    """Factor at each step of `step`, and whenever `plateau` acts."""
    patience: CountOrZero = 10
    """Epochs without a better loss before `plateau` acts."""
    warmup_epochs: CountOrZero = 0
    """Epochs of linear warm-up before the schedule begins."""
    min_learning_rate: NumberOrZero = 0.0
    """Learning rate at the end of `cosine`."""


class TrainingSection(Section):
    """The training loop."""

    epochs: Count = 20
    """Number of passes over the training samples."""
    batch_size: Count | Literal["full"] | None = None
    """Samples per rank and step; results then depend on the number of ranks. Not together with global_batch_size."""
    global_batch_size: Count | Literal["full"] | None = None
    """Samples per step over all ranks; results do not depend on the number of ranks. Null for both means 64."""
    virtual_ranks: PowerOfTwo = 8
    """Number of microbatches of a batch, added in a fixed order: results are equal on up to this many ranks."""
    reduction: Literal["fixed", "any"] | None = None
    """`fixed` adds gradients in one order on any number of ranks, `any` in the library's own; null: fixed on CPUs."""
    engine: Literal["auto", "eager", "traced", "compiled", "ddp", "cuda_graph"] = "auto"
    """What computes a step: `compiled` is fastest on CPUs, for chains of dense layers, with dropout and batch norm too
    (not with distributed.sync_batch_norm), `traced` runs a recorded step of any network there, `eager` is plain
    PyTorch, `ddp` DistributedDataParallel, `cuda_graph` replays a recorded step on a GPU; `auto` takes the fastest that
    can do what the other settings ask."""
    dtype: Literal["float32", "float64"] = "float32"
    """Floating-point type of weights and data."""
    threads_per_rank: Count | None = None
    """Threads of each rank; null means 1 where results are promised to be equal bit for bit."""
    shuffle: bool | None = None
    """Draw a new order of the samples in each epoch; null means true in `standard`, false in `reference`."""
    max_steps: Count | None = None
    """Stop with a checkpoint after this many optimiser steps."""
    optimizer: OptimizerSection = Field(default_factory=OptimizerSection)
    """The optimiser."""
    scheduler: SchedulerSection | None = None
    """Schedule of the learning rate; null keeps it constant."""
    loss_function: Literal["mse", "mae", "huber"] = "mse"
    """What is minimised."""
    loss_weights: LossWeights | None = None
    """How much each target counts in the loss, by their names; those not named count 1. Null: all alike."""
    area_weighted_loss: bool = False
    """Weigh the loss, and with it the statistics of the normalisation, by the area of each point: the cosine of the
    latitude, or data.area_variable."""
    early_stopping_patience: Count | None = None
    """Stop after this many epochs without a better validation loss; null never stops early."""
    min_epochs: CountOrZero = 0
    """Epochs before early stopping may act."""
    log_interval: Count = 50
    """Steps between two lines of the log."""
    save_interval: Count = 10
    """Epochs between two checkpoints."""
    gradient_accumulation_steps: Count = 1
    """Backward passes before each optimiser step; each takes an equal part of the batch."""
    gradient_clip_norm: PositiveNumber | None = None
    """Largest norm of the whole gradient; null does not clip."""
    learning_rate_scaling: Literal["none", "linear", "sqrt"] = "none"
    """Multiply the learning rate by a ratio, or by its square root."""
    learning_rate_scaling_by: Literal["batch_size", "world_size"] = "batch_size"
    """The ratio: global batch size / 64, or the number of ranks."""
    use_amp: bool = False
    """Mixed precision: the network computes in `amp_dtype`, weights and sums stay as `dtype` says."""
    amp_dtype: Literal["bfloat16", "float16"] = "bfloat16"
    """Narrow type of mixed precision; float16 scales the loss, so that small gradients survive."""
    torch_compile: bool = False
    """Compile the network by torch.compile (engine eager or ddp); its first step takes many seconds."""
    gradient_checkpointing: bool = False
    """Keep no activation inside the network's blocks and compute them again in the backward pass: less memory."""
    deterministic: bool = False
    """Use deterministic algorithms only (torch.use_deterministic_algorithms); slower on GPUs."""
    allow_tf32: bool = False
    """Let GPUs multiply float32 matrices in TensorFloat32: faster, 10 bits of mantissa."""
    profile_training: bool = False
    """Write a profile of the training."""
    log_gpu_memory: bool = False
    """Log the memory in use on the GPU."""
    track_jacobian: bool = False
    """Follow the mean derivative of each target by each input, over a fixed sample of points, and how it changes."""
    jacobian_freq: Count = 1
    """Epochs between two of these Jacobians."""
    jacobian_tolerance: PositiveNumber | None = None
    """Stop when the Jacobian's relative change stays below this for early_stopping_patience epochs (one where that is
    null), not before min_epochs; null never stops by it. Implies track_jacobian."""

    @property
    def follows_jacobian(self) -> bool:
        """Whether the Jacobian is followed: asked for, or needed to know when to stop."""
        return self.track_jacobian or self.jacobian_tolerance is not None


class ComputeSection(Section):
    """Where the computation runs and what carries the messages."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes a GPU where one is visible."""
    backend: Literal["auto", "mpi", "gloo", "nccl", "nccl_if_available"] = "auto"
    """What carries the collectives; `nccl_if_available` is nccl where every rank has a GPU, else auto."""
    instruction_set: Literal["native", "x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "armv8-a"] = "native"
    """What `training.engine: compiled` is built for, where nodes differ or share a cache; the results are the same."""


class DistributedSection(Section):
    """Settings of distributed training; most are those of other trainers."""

    strategy: Literal["auto", "single", "dp", "ddp"] = "auto"
    """How gradients are shared; `dp` and `ddp` imply `training.reduction: any`."""
    timeout_s: PositiveNumber = 1800.0
    """Seconds after which a collective that does not end is an error."""
    start_timeout_s: PositiveNumber | None = None
    """Seconds for the ranks to meet, from the first one's arrival; null: 60 on one node, 300 on several. The variable
    MPITRAIN_START_TIMEOUT_S comes before it."""
    find_unused_parameters: bool = False
    """DistributedDataParallel's argument of this name."""
    gradient_as_bucket_view: bool = False
    """DistributedDataParallel's argument of this name."""
    broadcast_buffers: bool = True
    """DistributedDataParallel's argument of this name."""
    bucket_cap_mb: PositiveNumber = 25.0
    """DistributedDataParallel's argument of this name, in MiB."""
    static_graph: bool = False
    """DistributedDataParallel's argument of this name."""
    fp16_allreduce: bool = False
    """Send gradients in half precision; implies `training.reduction: any`."""
    sync_batch_norm: bool = False
    """Moments of batch normalisation over all ranks."""
