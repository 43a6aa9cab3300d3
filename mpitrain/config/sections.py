"""The sections of a run's configuration, one model each; the text under a field is its documentation.

Values are checked strictly: no number is read from text, no boolean from a number, and no whole number from `64.0`.
`None` means "decide by the rules of the other settings", so that a resolved configuration reads back equal.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

LARGEST_WHOLE_NUMBER = 2**63 - 1
LARGEST_VIRTUAL_RANKS = 65536

Count = Annotated[int, Field(ge=1, le=LARGEST_WHOLE_NUMBER)]
CountOrZero = Annotated[int, Field(ge=0, le=LARGEST_WHOLE_NUMBER)]
PositiveNumber = Annotated[float, Field(gt=0)]
NumberOrZero = Annotated[float, Field(ge=0)]
Momentum = Annotated[float, Field(ge=0, lt=1)]
Text = Annotated[str, Field(min_length=1)]
Names = Annotated[list[Text], Field(min_length=1)]


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        raise PydanticCustomError("power_of_two", "not a power of two")
    return value


PowerOfTwo = Annotated[
    int,
    Field(
        ge=1, le=LARGEST_VIRTUAL_RANKS, json_schema_extra={"allowed": f"a power of two, 1 to {LARGEST_VIRTUAL_RANKS}"}
    ),
    AfterValidator(_power_of_two),
]


class Section(BaseModel):
    """What every section has in common: frozen, strict, no unknown keys, no NaN or infinity."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
        defer_build=True,
    )


class ModelSection(Section):
    """The network."""

    name: Literal["icenet"] = "icenet"
    """Which network is trained."""
    input_size: Count = 7
    """Number of input features."""
    hidden_size: Count = 16
    """Number of hidden units."""
    output_size: Count = 1
    """Number of output features."""
    hidden_activation: Literal["none", "sigmoid", "relu", "gelu"] = "none"
    """Function between the two layers; the C++ program has none."""
    initial_weights: Text | None = None
    """Model file whose weights the training starts from; null draws them from the seed."""
    hidden_layers: Count = 1
    """Number of hidden layers."""


class VariablesSection(Section):
    """Which variables of the data file are read."""

    input_variables: Names | None = None
    """Names of the input variables, in order; null means the seven of a CICE history file."""
    output_variables: Names | None = None
    """Names of the target variables; null means the ice concentration."""


class DomainSection(Section):
    """Which points of the grid are samples."""

    pole: Literal["north", "south"] = "north"
    """Hemisphere."""
    clean_data: bool = True
    """Keep ocean points with ice only (poleward of 40 degrees); false keeps all points poleward of 60 degrees."""
    mask_mode: Text | None = None
    """Name of another rule that selects points."""


class DataSection(Section):
    """Where the samples come from."""

    data_path: Text | None = None
    """CICE history file; null trains on a synthetic one that is written first."""
    validation_split: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Fraction of the samples held out for validation; null means 0.1 in `standard`, 0 in `reference`."""
    num_workers: CountOrZero = 0
    """Number of reader processes beside each rank."""
    num_samples: Count | None = None
    """Number of synthetic samples."""
    max_patterns: Count | None = None
    """Largest number of samples that are kept."""
    thin_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of the selected samples that is kept."""


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
    """Number of slices of a batch that are added in a fixed order; results are equal up to this many ranks."""
    reduction: Literal["fixed", "any"] | None = None
    """`fixed` adds gradients in one order for any rank count, `any` as the library likes; null means fixed on CPUs."""
    engine: Literal["auto", "eager", "compiled"] = "auto"
    """What computes a step: `compiled` is fastest, `eager` the plain definition; `auto` compiles where it can."""
    dtype: Literal["float32", "float64"] = "float32"
    """Floating-point type of weights and data."""
    threads_per_rank: Count | None = None
    """Threads of each rank; null means 1 where the bits of the result are promised."""
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
    """Multiply the learning rate by global batch size / 64, or by its square root."""
    use_amp: bool = False
    """Mixed precision."""
    profile_training: bool = False
    """Write a profile of the training."""
    log_gpu_memory: bool = False
    """Log the memory in use on the GPU."""
    track_jacobian: bool = False
    """Follow the Jacobian during the training."""
    jacobian_freq: Count = 1
    """Epochs between two Jacobians."""


class ComputeSection(Section):
    """Where the computation runs and what carries the messages."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes a GPU where one is visible."""
    backend: Literal["auto", "mpi", "gloo", "nccl", "nccl_if_available"] = "auto"
    """What carries the collectives; `nccl_if_available` is nccl where every rank has a GPU, else auto."""


class DistributedSection(Section):
    """Settings of distributed training; most are those of other trainers."""

    strategy: Literal["auto", "single", "dp", "ddp"] = "auto"
    """How gradients are shared; `dp` and `ddp` imply `training.reduction: any`."""
    timeout_s: PositiveNumber = 1800.0
    """Seconds after which a collective that does not end is an error."""
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


class PredictionSection(Section):
    """The prediction written after training."""

    cice_history: Text | None = None
    """CICE history file to predict for."""
    output_filename: Text | None = None
    """NetCDF file that the prediction is written to."""


class OutputSection(Section):
    """What is written, and where."""

    model_dir: Text = "mpitrain_run"
    """The run folder."""
    model_file: Text = "model.pt"
    """Name of the exported model in the run folder."""
    progress: Literal["auto", "bar", "lines"] = "auto"
    """`bar` redraws one line, `lines` prints one an epoch; `auto` looks at the terminal."""
    weights: Literal["best", "final"] | None = None
    """Which weights are exported; null means best in `standard` with validation, else final."""
