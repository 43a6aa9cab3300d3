"""The sections `training`, `compute` and `distributed`: training loop, devices and communication."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from mpitrain.config.component import Room
from mpitrain.config.section import (
    Count,
    CountOrZero,
    Momentum,
    Needs,
    NumberOrZero,
    PositiveNumber,
    PowerOfTwo,
    ReferenceValues,
    Section,
)

LossWeights = Annotated[
    dict[str, NumberOrZero],
    Field(json_schema_extra={"allowed": "a mapping of targets to numbers, at least 0, such as {sst: 2, sss: 0.5}"}),
]


OPTIMIZERS = Room("training.optimizer", "mpitrain.train.optimizers")
SCHEDULES = Room("training.scheduler", "mpitrain.train.schedules")
LOSSES = Room("training.loss_function", "mpitrain.train.losses", is_name=True)


class AverageSection(Section):
    """A moving average of the weights over the steps, which is validated and exported instead of the weights."""

    decay: Momentum = 0.999
    """Fraction of the average that is kept in each step, at most (1 + t) / (10 + t) at step t."""


class TrainingSection(Section):
    """The training loop."""

    reference_values: ClassVar[ReferenceValues] = {
        "shuffle": (False,), "batch_size": ("full",), "global_batch_size": ("full",), "engine": ("auto", "eager"),
        "early_stopping_patience": (), "jacobian_tolerance": (), "reduction": (), "loss_weights": (),
        "area_weighted_loss": (), "gradient_clip_norm": (), "gradient_accumulation_steps": (),
        "average": (), "learning_rate_scaling": (), "use_amp": (), "torch_compile": (), "gradient_checkpointing": (),
    }  # fmt: skip
    needs: ClassVar[Needs] = {
        "min_epochs": (
            lambda config: (
                (config.training.early_stopping_patience, config.training.jacobian_tolerance) != (None, None)
            ),
            "has no effect because this run has no early stopping; give training.early_stopping_patience",
        ),
        "early_stopping_patience": (
            lambda config: config.holds_out or config.training.jacobian_tolerance is not None,
            "has no effect without held-out samples; give data.validation_split",
        ),
        "amp_dtype": (lambda config: config.training.use_amp, "has no effect without training.use_amp=true"),
        "learning_rate_scaling_by": (
            lambda config: config.training.learning_rate_scaling != "none",
            "has no effect without training.learning_rate_scaling",
        ),
        "jacobian_freq": (
            lambda config: config.training.follows_jacobian,
            "has no effect without training.track_jacobian=true",
        ),
    }

    epochs: Count = 20
    """Number of passes over the training samples."""
    batch_size: Count | Literal["full"] | None = None
    """Samples per rank and step; results depend on the number of ranks. Not allowed with global_batch_size."""
    global_batch_size: Count | Literal["full"] | None = None
    """Samples per step over all ranks; results do not depend on the number of ranks. Null for both batch sizes: 64."""
    virtual_ranks: PowerOfTwo | None = None
    """Number of microbatches per batch, which is the largest number of ranks that share a batch. Set it for more than
    128 ranks, or to reproduce runs of earlier versions, which had 8. Null: the number follows from the batch."""
    reduction: Literal["fixed", "any"] | None = None
    """`fixed` sums gradients in the same order on any number of ranks, `any` in the order of the library; null: fixed
    on CPUs."""
    engine: Literal["auto", "eager", "traced", "compiled", "ddp", "cuda_graph"] = "auto"
    """Engine that computes a step. `compiled`: the fastest on CPUs, for chains of dense layers, cnn and unet, also with
    dropout and batch norm (not with distributed.sync_batch_norm); `traced`: a recorded step of any network, on CPUs;
    `eager`: plain PyTorch; `ddp`: DistributedDataParallel; `cuda_graph`: a recorded step on a GPU; `auto`: the fastest
    engine that supports the other settings."""
    dtype: Literal["float32", "float64"] = "float32"
    """Floating-point type of weights and data."""
    threads_per_rank: Count | None = None
    """Threads of each rank; null: 1 if results are guaranteed to be equal bit for bit."""
    shuffle: bool | None = None
    """Shuffle the samples in each epoch; null: true in `standard`, false in `reference`."""
    max_steps: Count | None = None
    """Number of optimiser steps after which the run stops with a checkpoint."""
    optimizer: Annotated[Any, OPTIMIZERS] = Field(default_factory=lambda: OPTIMIZERS.validate({}))
    """The optimiser."""
    average: AverageSection | None = None
    """Validate and export a moving average of the weights, {decay: 0.999}; null: the weights themselves."""
    scheduler: Annotated[Any, SCHEDULES] = None
    """Schedule of the learning rate; null: constant."""
    loss_function: Annotated[Any, LOSSES] = Field(default_factory=lambda: LOSSES.validate({}))
    """The loss function; a loss without options is given by its name."""
    loss_weights: LossWeights | None = None
    """Weight of each target in the loss, by name; targets that are not named have weight 1. Null: equal weights."""
    area_weighted_loss: bool = False
    """Weight the loss and the statistics of the normalisation by the area of each point: the cosine of the latitude, or
    data.area_variable."""
    early_stopping_patience: Count | None = None
    """Stop after this number of epochs without a lower validation loss; null: no early stopping."""
    min_epochs: CountOrZero = 0
    """Minimum number of epochs before early stopping."""
    log_interval: Count = 50
    """Steps between two lines of the log."""
    save_interval: Count = 10
    """Epochs between two checkpoints. If epochs are long, checkpoints are saved more often: about once per minute, or
    after each epoch of more than a minute."""
    gradient_accumulation_steps: Count = 1
    """Backward passes per optimiser step, each with an equal part of the batch."""
    gradient_clip_norm: PositiveNumber | None = None
    """Maximum norm of the gradient of all parameters together; null: no clipping."""
    learning_rate_scaling: Literal["none", "linear", "sqrt"] = "none"
    """Multiply the learning rate by the ratio of learning_rate_scaling_by (linear), or by its square root (sqrt)."""
    learning_rate_scaling_by: Literal["batch_size", "world_size"] = "batch_size"
    """The ratio: global batch size / 64, or the number of ranks."""
    use_amp: bool = False
    """Mixed precision: the network computes in `amp_dtype`; weights and sums keep `dtype`."""
    amp_dtype: Literal["bfloat16", "float16"] = "bfloat16"
    """16-bit type of mixed precision; with float16 the loss is scaled so that small gradients do not underflow."""
    torch_compile: bool = False
    """Compile the network with torch.compile (engine eager or ddp); the first step takes many seconds."""
    gradient_checkpointing: bool = False
    """Recompute the activations inside the network's blocks in the backward pass instead of storing them: less
    memory."""
    deterministic: bool = False
    """Use only deterministic algorithms (torch.use_deterministic_algorithms); slower on GPUs."""
    allow_tf32: bool = False
    """Allow TensorFloat32 (10 bits of mantissa) for float32 matrix products on GPUs: faster."""
    profile_training: bool = False
    """Write a profile of the training."""
    log_gpu_memory: bool = False
    """Log the memory used on the GPU."""
    track_jacobian: bool = False
    """Log the mean derivative of each target with respect to each input, over a fixed sample of points, and its
    change."""
    jacobian_freq: Count = 1
    """Epochs between two of these Jacobians."""
    jacobian_tolerance: PositiveNumber | None = None
    """Stop when the relative change of the Jacobian stays below this for early_stopping_patience epochs (1 if that is
    null), and not before min_epochs; null: not a criterion. Implies track_jacobian."""

    @property
    def follows_jacobian(self) -> bool:
        """Whether Jacobians are computed: by `track_jacobian`, or for the stopping criterion."""
        return self.track_jacobian or self.jacobian_tolerance is not None


class ComputeSection(Section):
    """The device of the computation and the library of the collectives."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: a GPU if one is visible, otherwise the CPU."""
    backend: Literal["auto", "mpi", "gloo", "nccl", "nccl_if_available"] = "auto"
    """Library of the collectives; `nccl_if_available`: nccl if every rank has a GPU, otherwise auto."""
    instruction_set: Literal["native", "x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "armv8-a"] = "native"
    """Instruction set of the compiled engine; if the nodes differ, give one that all of them support. The results are
    the same for all sets."""


class DistributedSection(Section):
    """Settings of distributed training; most have the names of other trainers' settings."""

    needs: ClassVar[Needs] = {
        "sync_batch_norm": (
            lambda config: config.network.may_have_batch_norm,
            "has no effect because the network has no batch norm (model.batch_norm)",
        )
    }

    strategy: Literal["auto", "single", "dp", "ddp"] = "auto"
    """How gradients are combined over the ranks; `dp` and `ddp` imply `training.reduction: any`."""
    timeout_s: PositiveNumber = 1800.0
    """Seconds after which an unfinished collective is an error."""
    start_timeout_s: PositiveNumber | None = None
    """Time limit in seconds for all ranks to connect, counted from the first rank that waits for the others; null: 60
    on one node, 300 on several nodes. The environment variable MPITRAIN_START_TIMEOUT_S takes precedence."""
    find_unused_parameters: bool = False
    """Argument of this name of DistributedDataParallel."""
    gradient_as_bucket_view: bool = False
    """Argument of this name of DistributedDataParallel."""
    broadcast_buffers: bool = True
    """Argument of this name of DistributedDataParallel."""
    bucket_cap_mb: PositiveNumber = 25.0
    """Argument of this name of DistributedDataParallel, in MiB."""
    static_graph: bool = False
    """Argument of this name of DistributedDataParallel."""
    fp16_allreduce: bool = False
    """Communicate gradients in half precision; implies `training.reduction: any`."""
    sync_batch_norm: bool = False
    """Compute the moments of batch normalisation over all ranks."""
