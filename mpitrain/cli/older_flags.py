"""Flags of other trainers, translated before argparse reads them; the tables are data.

A flag that means exactly a setting, a switch or another flag is read as that. One that means something else here is
refused by a line that names what to use. `--output_dir` and `--output-dir` are one flag.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mpitrain.errors import LaunchError, UserError

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

    instead: dict[str, str] = field(default_factory=dict)
    """Flags of this command alone, to what to use."""
    checked: dict[str, str] = field(default_factory=dict)
    """Flags whose number is compared with what the launcher says, to the name of what they number."""

    def advice(self, flag: str) -> str | None:
        """Return advice for a flag that means something else here; None for an unknown flag."""
        if flag in ("--help", "--log-level", "--resume", *self.renamed, *self.switches, *self.checked):
            return None
        if flag in self.instead:
            return self.instead[flag]
        if self.advises is not None and flag not in self.advises:
            return None
        from mpitrain.config.older.synonyms import INSTEAD  # with its package, which help does without

        return INSTEAD.get(flag.removeprefix("--").replace("-", "_"))


QUICK_RUN = ("training.epochs=1", "data.max_patterns=512")
"""What `--debug` sets: a run to its end within seconds."""

_OF_TRAIN = {
    "--debug": ("--debug",),
    "--verbose": ("--log-level", "debug"),
    "--resume-from": ("--resume",),
    "--resume-from-checkpoint": ("--resume",),
    "--load-checkpoint": ("--resume",),
}
# `srun ... --world-size $SLURM_NTASKS --local-rank $SLURM_LOCALID`: what the launcher says anyway.
_OF_THE_LAUNCHER = {
    "--world-size": "world_size",
    "--rank": "rank",
    "--local-rank": "local_rank",
    "--local-world-size": "local_world_size",
    "--node-rank": "node_rank",
}
_BY_HAND = (
    "`mpitrain launch --scheduler manual --hosts A,B` writes the commands of each host, the first where ranks meet"
)
_INSTEAD_IN_LAUNCH = {
    flag: _BY_HAND for flag in ("--node-rank", "--rank", "--local-rank", "--master-addr", "--rdzv-endpoint")
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
_KEYS = {**SETTINGS, **_EPOCHS_AND_SO_ON}

DIALECTS: dict[str, Dialect] = {
    "train": Dialect(SETTINGS, SWITCHES, _OF_TRAIN, (), None, checked=_OF_THE_LAUNCHER),
    "launch": Dialect(
        {flag: key for flag, key in _KEYS.items() if flag != "--scheduler"},
        SWITCHES, _OF_LAUNCH, ("--dry-run",), ("--train-samples", "--val-samples", "--data-type", "--warmup-steps"),
        _INSTEAD_IN_LAUNCH,
    ),
    "config": Dialect({**_KEYS, "--output": "output.model_dir"}, SWITCHES),
    "doctor": Dialect(),
    "ensemble": Dialect(),
}  # fmt: skip
_FILE_FLAGS = ("--config", "-c", "--config-path", "--config-file")
_FOLDER_FLAGS = ("--checkpoint", "--checkpoint-path", "--model", "--model-path", "--model-dir", "--weights")
_OF_A_RUN = ("predict", "export", "report", "reproduce")


def unread_variables(environ: Mapping[str, str], overrides: Sequence[str]) -> list[str]:
    """Return a line for each variable of other trainers that a run does not read and that no setting stands for."""
    seconds = environ.get("NCCL_TIMEOUT")
    if not seconds or any(word.startswith("distributed.timeout") for word in overrides):
        return []
    return [f"NCCL_TIMEOUT={seconds}: not read by a run; set distributed.timeout_s={seconds}"]


def advice_for_words(command: str, words: Sequence[str], takes_settings: bool = True, takes_file: bool = True) -> str:
    """Return advice for the first known flag that a command does not have; "" without one."""
    of_flags = (_advice_for_flag(command, word, takes_settings, takes_file) for word in words if word.startswith("-"))
    of_words = (_advice_for_word(word) for word in words if command == "launch")
    return next(filter(None, (*of_flags, *of_words)), "")


def _advice_for_flag(command: str, word: str, takes_settings: bool, takes_file: bool) -> str:
    from mpitrain.config.older.synonyms import INSTEAD  # with its package, which help does without

    given = word.partition("=")[0]
    flag = given.replace("_", "-")
    if flag in _FILE_FLAGS:
        return f"{given}: {_instead_of_a_file_flag(command, takes_settings, takes_file)}"
    if flag in _FOLDER_FLAGS and command in _OF_A_RUN:
        return f"{given}: give the folder of a run, or its model.pt, as the first word"
    settings = (*SWITCHES.get(flag, ()), *(f"{key}=VALUE" for name, key in _KEYS.items() if name == flag))
    if settings and takes_settings:
        return f"{given}: write {' '.join(settings)}"
    instead = INSTEAD.get(flag.removeprefix("--").replace("-", "_"), "")
    if settings or instead.startswith("it is a flag"):
        instead = "a flag of mpitrain train"
    return instead and f"{given}: {instead}"


def _instead_of_a_file_flag(command: str, takes_settings: bool, takes_file: bool) -> str:
    if takes_file:
        return "write FILE.yaml without the flag"
    if command in _OF_A_RUN:
        more = " and single settings as key.path=value" if takes_settings else ""
        return f"a run's settings are in its folder: mpitrain {command} FOLDER{more}"
    return "this command has no settings"


def _advice_for_word(word: str) -> str:
    from mpitrain.launch.presets import PRESETS

    if word in ("slurm", "pbs", "torque", "local", "manual"):
        return f"{word}: write --scheduler {word}"
    if word in PRESETS:
        return f"{word}: write --preset {word}"
    if word in ("train", "ensemble", "doctor"):
        return f"{word}: write --run {word}"
    if word.endswith(".py"):
        return f"{word}: a job runs mpitrain itself; a network of your own is model.name={word}:NAME"
    return (
        "" if word.startswith("-") else f"{word}: a job takes a file of settings (FILE.yaml) and key.path=value words"
    )


def _check_number(flag: str, name: str, text: str) -> None:
    """Compare a flag's number with those of the launcher's variables. Raises LaunchError where they disagree.

    A process that nothing has launched is rank 0 of 1. Where a launcher does not tell the number, any is taken.
    """
    if not (text.isascii() and text.isdigit()):
        raise UserError(f"{flag} {text}: give a whole number, or leave it out: the launcher tells it")
    from mpitrain.cluster.launchers import read_claims, without_inherited

    try:
        claims = [claim for claim in without_inherited(read_claims(os.environ), os.environ) if claim.rank is not None]
    except LaunchError:
        return  # the start says what is wrong with the variables
    found = {getattr(claim, name) for claim in claims} - {None} if claims else {int(name.endswith("size"))}
    if found and int(text) not in found:
        told = " and ".join(map(str, sorted(found)))
        who = " and ".join(claim.source for claim in claims) or "no launcher: this is one process"
        raise LaunchError(
            f"{flag} {text}: it is {told} ({who}); leave the flag out: the number of ranks is the launcher's: "
            "mpirun -np N"
        )


def to_current_flags(words: Sequence[str]) -> list[str]:
    """Return a command line, its command first, in today's words. Raises UserError for a flag to be replaced."""
    if not words or words[0] not in DIALECTS:
        return list(words)
    trains = not any(word.partition("=")[0] in ("--run", "--ensemble") for word in words)
    quick = QUICK_RUN if words[0] == "launch" and "--debug" in words and trains else ()
    # First, so that the user's own settings win.
    return [words[0], *quick, *_translated(words[0], words[1:])]


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
        elif flag in dialect.checked:
            _check_number(flag, dialect.checked[flag], value if equals else next(rest, ""))
        elif flag in dialect.switches:
            yield from dialect.switches[flag]
        elif flag not in dialect.dropped:
            renamed = dialect.renamed.get(flag)
            yield from (f"{flag}{equals}{value}",) if renamed is None else (*renamed, *([value] if equals else []))
