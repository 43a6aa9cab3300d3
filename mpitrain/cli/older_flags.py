"""Flags of other trainers, turned into this one's words before argparse sees them; the tables are data.

A flag that means exactly a setting, a switch or another flag is read as that. One that means something else here is
refused by a line that names what to use. `--output_dir` and `--output-dir` are one flag.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mpitrain.errors import UserError

# A flag with a value, to the key that it sets; `distributed.backend=nccl` still runs where there is no GPU.
_SETTINGS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("training.optimizer.learning_rate", ("--learning-rate",)),
    ("training.optimizer.weight_decay", ("--weight-decay",)),
    ("training.optimizer.type", ("--optimizer",)),
    ("training.scheduler.type", ("--scheduler", "--lr-scheduler")),
    ("training.warmup_epochs", ("--warmup-epochs",)),
    ("training.epochs", ("--num-epochs", "--max-epochs")),
    ("training.global_batch_size", ("--global-batch-size",)),
    ("training.max_steps", ("--max-steps",)),
    ("training.gradient_clip_norm", ("--max-grad-norm", "--gradient-clip-norm", "--clip-grad-norm")),
    ("training.gradient_accumulation_steps", ("--gradient-accumulation-steps", "--accumulation-steps")),
    ("training.early_stopping_patience", ("--early-stopping-patience",)),
    ("training.loss_function", ("--loss", "--loss-function")),
    ("training.log_interval", ("--log-interval",)),
    ("training.save_interval", ("--save-interval",)),
    ("training.amp_dtype", ("--amp-dtype",)),
    ("training.virtual_ranks", ("--virtual-ranks",)),
    ("data.data_path", ("--data-path", "--data-file")),
    ("data.num_workers", ("--num-workers", "--workers")),
    ("data.validation_split", ("--validation-split", "--val-split")),
    ("output.model_dir", ("--output-dir", "--model-dir", "--checkpoint-dir", "--save-dir")),
    ("distributed.backend", ("--backend", "--dist-backend", "--distributed-backend")),
    ("distributed.strategy", ("--strategy",)),
    ("distributed.timeout_s", ("--timeout", "--nccl-timeout")),
    ("compute.device", ("--device",)),
    ("model.name", ("--model",)),
    ("model.hidden_size", ("--hidden-size", "--hidden-dim")),
    ("model.hidden_layers", ("--hidden-layers",)),
    ("model.dropout", ("--dropout",)),
    ("tracking.wandb_project", ("--wandb-project",)),
    ("tracking.wandb_entity", ("--wandb-entity",)),
    ("tracking.wandb_name", ("--wandb-name", "--wandb-run-name")),
    ("tracking.wandb_tags", ("--wandb-tags",)),
    ("tracking.wandb_mode", ("--wandb-mode",)),
    ("tracking.mlflow_uri", ("--mlflow-uri", "--mlflow-tracking-uri")),
    ("tracking.mlflow_experiment", ("--mlflow-experiment", "--mlflow-experiment-name")),
    ("seed", ("--seed", "--random-seed")),
)
SETTINGS = {flag: key for key, flags in _SETTINGS for flag in flags}

# A flag without a value, to the settings that it stands for.
_SWITCHES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("training.gradient_checkpointing=true",), ("--gradient-checkpointing", "--activation-checkpointing")),
    (("training.gradient_checkpointing=false",), ("--no-gradient-checkpointing",)),
    (("training.torch_compile=true",), ("--compile", "--torch-compile")),
    (("training.torch_compile=false",), ("--no-compile", "--no-torch-compile")),
    (("training.use_amp=true",), ("--amp", "--use-amp", "--mixed-precision")),
    (("training.use_amp=false",), ("--no-amp",)),
    (("training.use_amp=true", "training.amp_dtype=float16"), ("--fp16",)),
    (("training.use_amp=true", "training.amp_dtype=bfloat16"), ("--bf16",)),
    (("compute.device=cpu",), ("--cpu", "--no-cuda")),
    (("use_cuda=true",), ("--cuda", "--use-cuda")),
    (("training.deterministic=true",), ("--deterministic",)),
    (("distributed.sync_batch_norm=true",), ("--sync-batch-norm", "--sync-bn")),
    (("data.streaming=true",), ("--streaming",)),
    (("tracking.wandb=true",), ("--wandb", "--use-wandb")),
    (("tracking.wandb=false",), ("--no-wandb",)),
    (("tracking.wandb=true", "tracking.wandb_mode=offline"), ("--wandb-offline",)),
    (("tracking.tensorboard=true",), ("--tensorboard",)),
    (("tracking.mlflow=true",), ("--mlflow",)),
    (("training.profile_training=true",), ("--profile", "--profile-training")),
)
SWITCHES = {flag: settings for settings, flags in _SWITCHES for flag in flags}


@dataclass(frozen=True)
class Dialect:
    """What one command understands; `dropped` flags say what is so anyway, `advises` (None: all known) are refused."""

    settings: dict[str, str] = field(default_factory=dict)
    switches: dict[str, tuple[str, ...]] = field(default_factory=dict)
    renamed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    advises: tuple[str, ...] | None = ()

    def advice(self, flag: str) -> str | None:
        """Return what to use instead of a flag that means something else here; None where the flag is not known."""
        if flag in ("--help", "--log-level", "--resume") or flag in self.renamed or flag in self.switches:
            return None
        if self.advises is not None and flag not in self.advises:
            return None
        from mpitrain.config.older.synonyms import INSTEAD  # with its package, which help does without

        return INSTEAD.get(flag.removeprefix("--").replace("-", "_"))


_OF_TRAIN = {
    "--debug": ("--log-level", "debug"),
    "--verbose": ("--log-level", "debug"),
    "--resume-from": ("--resume",),
    "--resume-from-checkpoint": ("--resume",),
    "--load-checkpoint": ("--resume",),
}
_OF_LAUNCH = {
    "--debug": ("--preset", "debug"),
    "--time-limit": ("--walltime",),
    "--world-size": ("--ntasks",),
    "--num-nodes": ("--nodes",),
    "--nnodes": ("--nodes",),
    "--gpus": ("--gpus-per-node",),
    "--num-gpus": ("--gpus-per-node",),
    "--nproc-per-node": ("--tasks-per-node",),
    "--ntasks-per-node": ("--tasks-per-node",),
    "--mem": ("--memory",),
    "--output-script": ("--output",),
}
# Flags that are settings in one command and belong to the other one's own words.
_EPOCHS_AND_SO_ON = {
    "--epochs": "training.epochs",
    "--batch-size": "training.batch_size",
    "--lr": "training.optimizer.learning_rate",
    "--data": "data.data_path",
}

DIALECTS: dict[str, Dialect] = {
    "train": Dialect(SETTINGS, SWITCHES, _OF_TRAIN, (), None),
    "launch": Dialect(
        {flag: key for flag, key in {**SETTINGS, **_EPOCHS_AND_SO_ON}.items() if flag != "--scheduler"},
        SWITCHES, _OF_LAUNCH, ("--dry-run",), ("--train-samples", "--val-samples", "--data-type", "--warmup-steps"),
    ),
    "config": Dialect({**SETTINGS, **_EPOCHS_AND_SO_ON, "--output": "output.model_dir"}, SWITCHES),
    "doctor": Dialect(),
}  # fmt: skip
_FILE_FLAGS = ("--config", "-c")


def to_current_flags(words: Sequence[str]) -> list[str]:
    """Return a command line, its command first, in today's words. Raises UserError for a flag to be replaced."""
    if not words or words[0] not in DIALECTS:
        return list(words)
    return [words[0], *_translated(words[0], words[1:])]


def _translated(command: str, words: Sequence[str]) -> Iterator[str]:
    dialect, rest = DIALECTS[command], iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        if not flag.startswith("-"):
            yield word
            continue
        flag = flag.replace("_", "-")
        advice = dialect.advice(flag)
        if advice is not None:
            raise UserError(f"{flag}: no flag of {command}; {advice}")
        if flag in dialect.settings or flag in _FILE_FLAGS:
            given = value if equals else next(rest, "")
            if not given or (given.startswith("--") and not equals):
                raise UserError(f"{flag}: needs a value; see mpitrain {command} --help")
            yield given if flag in _FILE_FLAGS else f"{dialect.settings[flag]}={given}"
        elif flag in dialect.switches:
            yield from dialect.switches[flag]
        elif flag not in dialect.dropped:
            renamed = dialect.renamed.get(flag)
            yield from (f"{flag}{equals}{value}",) if renamed is None else (*renamed, *([value] if equals else []))
