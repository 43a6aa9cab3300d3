"""Flags of other trainers, translated before argparse reads them; the tables are data.

A flag that is a key's name as a flat file may have it, ours or another trainer's, with dashes, is read as that.
One that means something else here is refused by a line that names what to use. `--output_dir` and `--output-dir` are
one flag.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mpitrain.errors import LaunchError, UserError

# Flags that are no key's name with dashes, nor another trainer's name of one, to the key that they set.
_SETTINGS = {
    "--backend": "distributed.backend",  # under this name nccl still runs where there is no GPU
    "--data": "data.data_path",
    "--dist-backend": "distributed.backend",
    "--distributed-backend": "distributed.backend",
    "--lr-scheduler": "training.scheduler",
    "--model": "model.name",
    "--nccl-timeout": "distributed.timeout_s",
    "--output": "output.model_dir",
    "--sync-bn": "distributed.sync_batch_norm",
    "--timeout": "distributed.timeout_s",
    "--warmup-epochs": "training.warmup_epochs",  # which alone asks for no schedule after it
    "--workers": "data.num_workers",
}
# A flag without a value, to the settings that it stands for.
_SWITCHES: dict[str, tuple[str, ...]] = {
    "--bf16": ("training.use_amp=true", "training.amp_dtype=bfloat16"),
    "--cpu": ("compute.device=cpu",),
    "--cuda": ("use_cuda=true",),
    "--fp16": ("training.use_amp=true", "training.amp_dtype=float16"),
    "--no-cuda": ("compute.device=cpu",),
    "--use-cuda": ("use_cuda=true",),
    "--wandb-offline": ("tracking.wandb=true", "tracking.wandb_mode=offline"),
}


def _key_of(flag: str) -> tuple[str, bool]:
    """Return the key that a flag sets, and whether it stands for true without a value; "" for an unknown flag."""
    from mpitrain.config.older.spellings import is_true_or_false, key_of_name

    key = _SETTINGS.get(flag) or ".".join(key_of_name(flag.removeprefix("--").replace("-", "_")))
    return key, bool(key) and is_true_or_false(key)


def _settings_of(flag: str, value: str | None, rest: Iterator[str]) -> tuple[str, ...]:
    """Return the settings that a flag stands for, () for an unknown one; `rest` are the words after it."""
    if flag in _SWITCHES and value is None:
        return _SWITCHES[flag]
    key, is_switch = _key_of(flag)
    if is_switch:
        return (f"{key}={'true' if value is None else value}",)
    if key:
        return (f"{key}={_value_of(flag, value, rest)}",)
    key, is_switch = _key_of(flag.replace("--no-", "--", 1))
    return (f"{key}=false",) if is_switch and value is None and flag.startswith("--no-") else ()


def _value_of(flag: str, value: str | None, rest: Iterator[str]) -> str:
    given = next(rest, "") if value is None else value
    if not given or (given.startswith("--") and value is None):
        raise UserError(f"{flag}: needs a value")
    return given


@dataclass(frozen=True)
class Dialect:
    """What one command understands; `dropped` flags say what is so anyway."""

    takes_settings: bool = False
    renamed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    checked: dict[str, str] = field(default_factory=dict)
    """Flags whose number is compared with what the launcher says, to the name of what they number."""


QUICK_RUN = ("training.epochs=1", "data.max_patterns=512")
"""What `--debug` sets: a run to its end within seconds."""

_OF_TRAIN = {
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
_INSTEAD_IN_LAUNCH = ("--node-rank", "--rank", "--local-rank", "--master-addr", "--rdzv-endpoint")
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
DIALECTS: dict[str, Dialect] = {
    "train": Dialect(True, _OF_TRAIN, checked=_OF_THE_LAUNCHER),
    "launch": Dialect(True, _OF_LAUNCH, ("--dry-run",)),
    "config": Dialect(True),
    "doctor": Dialect(),
    "ensemble": Dialect(),
}
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
    from mpitrain.config.older.synonyms import INSTEAD

    given = word.partition("=")[0]
    flag = given.replace("_", "-")
    if flag in _FILE_FLAGS:
        return f"{given}: {_instead_of_a_file_flag(command, takes_settings, takes_file)}"
    if flag in _FOLDER_FLAGS and command in _OF_A_RUN:
        return f"{given}: give the folder of a run, or its model.pt, as the first word"
    if command == "launch" and flag in _INSTEAD_IN_LAUNCH:
        return f"{given}: {_BY_HAND}"
    text = word.partition("=")[2]
    settings = _settings_of(flag, text or None, iter(["VALUE"]))
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
    from mpitrain.launch.schedulers.table import SCHEDULERS

    if word in SCHEDULERS:
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


def to_current_flags(words: Sequence[str], own: Collection[str]) -> list[str]:
    """Return a command line, its command first, in today's words; `own` are the flags that the command has.

    Raises UserError for a flag without its value, LaunchError for a number that the launcher contradicts.
    """
    if not words or words[0] not in DIALECTS:
        return list(words)
    trains = not any(word.partition("=")[0] in ("--run", "--ensemble") for word in words)
    quick = QUICK_RUN if words[0] == "launch" and "--debug" in words and trains else ()
    # First, so that the user's own settings win.
    return [words[0], *quick, *_translated(words[0], words[1:], own)]


def _translated(command: str, words: Sequence[str], own: Collection[str]) -> Iterator[str]:
    dialect, rest = DIALECTS[command], iter(words)
    for word in rest:
        flag, equals, text = word.partition("=")
        if not flag.startswith("-"):
            yield word
            continue
        flag, value = flag.replace("_", "-"), text if equals else None
        if flag in dialect.renamed:
            yield from (*dialect.renamed[flag], *([text] if equals else []))
        elif flag in own:
            yield f"{flag}{equals}{text}"
        elif flag in _FILE_FLAGS:
            yield _value_of(flag, value, rest)
        elif flag in dialect.checked:
            _check_number(flag, dialect.checked[flag], next(rest, "") if value is None else value)
        elif flag not in dialect.dropped:
            yield from (dialect.takes_settings and _settings_of(flag, value, rest)) or (f"{flag}{equals}{text}",)
