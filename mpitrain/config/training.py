"""The sections `training`, `compute` and `distributed`: how the network is trained, where, and by which messages."""

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
    """A moving average of the weights over the steps, which is judged and exported in their place."""

    decay: Momentum = 0.999
    """Share of the average that a step keeps, at most (1 + t) / (10 + t) at step t."""


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
            "of no effect, for nothing stops this run early; give training.early_stopping_patience",
        ),
        "early_stopping_patience": (
            lambda config: config.holds_out or config.training.jacobian_tolerance is not None,
            "of no effect, for nothing is held out that could stop getting better; give data.validation_split",
        ),
        "amp_dtype": (lambda config: config.training.use_amp, "of no effect without training.use_amp=true"),
        "learning_rate_scaling_by": (
            lambda config: config.training.learning_rate_scaling != "none",
            "of no effect without training.learning_rate_scaling",
        ),
        "jacobian_freq": (
            lambda config: config.training.follows_jacobian,
            "of no effect without training.track_jacobian=true",
        ),
    }

    epochs: Count = 20
    """Number of passes over the training samples."""
    batch_size: Count | Literal["full"] | None = None
    """Samples per rank and step; results then depend on the number of ranks. Not together with global_batch_size."""
    global_batch_size: Count | Literal["full"] | None = None
    """Samples per step over all ranks; results do not depend on the number of ranks. Null for both means 64."""
    virtual_ranks: PowerOfTwo | None = None
    """Number of microbatches of a batch, for runs of before this followed from the batch: they had 8, or what was set,
    and give their old results with it, on up to so many ranks. Null for all others."""
    reduction: Literal["fixed", "any"] | None = None
    """`fixed` adds gradients in one order on any number of ranks, `any` in the library's own; null: fixed on CPUs."""
    engine: Literal["auto", "eager", "traced", "compiled", "ddp", "cuda_graph"] = "auto"
    """What computes a step: `compiled` is fastest on CPUs, for chains of dense layers, cnn and unet, with dropout and
    batch norm too (not with distributed.sync_batch_norm), `traced` runs a recorded step of any network there, `eager`
    is plain PyTorch, `ddp` DistributedDataParallel, `cuda_graph` replays a recorded step on a GPU; `auto` takes the
    fastest that can do what the other settings ask."""
    dtype: Literal["float32", "float64"] = "float32"
    """Floating-point type of weights and data."""
    threads_per_rank: Count | None = None
    """Threads of each rank; null means 1 where results are promised to be equal bit for bit."""
    shuffle: bool | None = None
    """Draw a new order of the samples in each epoch; null means true in `standard`, false in `reference`."""
    max_steps: Count | None = None
    """Stop with a checkpoint after this many optimiser steps."""
    optimizer: Annotated[Any, OPTIMIZERS] = Field(default_factory=lambda: OPTIMIZERS.validate({}))
    """The optimiser."""
    average: AverageSection | None = None
    """Judge and export a moving average of the weights, {decay: 0.999}; null takes the weights themselves."""
    scheduler: Annotated[Any, SCHEDULES] = None
    """Schedule of the learning rate; null keeps it constant."""
    loss_function: Annotated[Any, LOSSES] = Field(default_factory=lambda: LOSSES.validate({}))
    """The loss that is minimised; its name alone, where it has no options."""
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
    """Epochs between two checkpoints; fewer if epochs are long: about one checkpoint a minute is saved."""
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
    """Library that carries out the collectives; `nccl_if_available` is nccl where every rank has a GPU, else auto."""
    instruction_set: Literal["native", "x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "armv8-a"] = "native"
    """Instructions that the compiled engine may use: name the fewest where nodes differ; the results are the same."""


class DistributedSection(Section):
    """Settings of distributed training; most are those of other trainers."""

    needs: ClassVar[Needs] = {
        "sync_batch_norm": (
            lambda config: config.network.may_have_batch_norm,
            "of no effect, for the network has no batch norm (model.batch_norm)",
        )
    }

    strategy: Literal["auto", "single", "dp", "ddp"] = "auto"
    """How gradients are shared; `dp` and `ddp` imply `training.reduction: any`."""
    timeout_s: PositiveNumber = 1800.0
    """Seconds after which a collective that does not end is an error."""
    start_timeout_s: PositiveNumber | None = None
    """Seconds for the ranks to meet, from the first one's arrival; null: 60 on one node, 300 on several. The variable
    MPITRAIN_START_TIMEOUT_S takes precedence."""
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
