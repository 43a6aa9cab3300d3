"""Translation of other trainers' command-line options, applied before argparse; the tables are data.

An option that is the name of a key of a flat settings file (ours or another trainer's), written with dashes, sets that
key. An option that has another meaning here raises an error that names what to use. `--output_dir` and `--output-dir`
are equivalent.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mpitrain.errors import LaunchError, UserError

# Option: the key that it sets. For options that are not the name of a key, ours or another trainer's, with dashes.
_SETTINGS = {
    "--backend": "distributed.backend",  # with this key nccl is also accepted without a GPU
    "--data": "data.data_path",
    "--dist-backend": "distributed.backend",
    "--distributed-backend": "distributed.backend",
    "--lr-scheduler": "training.scheduler",
    "--model": "model.name",
    "--nccl-timeout": "distributed.timeout_s",
    "--output": "output.model_dir",
    "--sync-bn": "distributed.sync_batch_norm",
    "--timeout": "distributed.timeout_s",
    "--warmup-epochs": "training.warmup_epochs",  # this key alone does not select a schedule after the warm-up
    "--workers": "data.num_workers",
}
# Option without a value: the settings that it stands for.
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
    """Return the key that an option sets ("" if unknown), and whether the option means `true` without a value."""
    from mpitrain.config.older.spellings import is_true_or_false, key_of_name

    key = _SETTINGS.get(flag) or ".".join(key_of_name(flag.removeprefix("--").replace("-", "_")))
    return key, bool(key) and is_true_or_false(key)


def _settings_of(flag: str, value: str | None, rest: Iterator[str]) -> tuple[str, ...]:
    """Return the settings that an option stands for, or () if unknown; `rest` are the arguments after it."""
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
    """Other trainers' options that one command accepts; `dropped` options have no effect, they state the default."""

    takes_settings: bool = False
    renamed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    checked: dict[str, str] = field(default_factory=dict)
    """Options compared with the launcher's variables, with the name of the number (rank, world_size, ...)."""


QUICK_RUN = ("training.epochs=1", "data.max_patterns=512")
"""Settings of `--debug`: a complete run within seconds."""

_OF_TRAIN = {
    "--verbose": ("--log-level", "debug"),
    "--resume-from": ("--resume",),
    "--resume-from-checkpoint": ("--resume",),
    "--load-checkpoint": ("--resume",),
}
# `srun ... --world-size $SLURM_NTASKS --local-rank $SLURM_LOCALID`: numbers that the launcher's variables contain too.
_OF_THE_LAUNCHER = {
    "--world-size": "world_size",
    "--rank": "rank",
    "--local-rank": "local_rank",
    "--local-world-size": "local_world_size",
    "--node-rank": "node_rank",
}
_BY_HAND = (
    "`mpitrain launch --scheduler manual --hosts A,B` writes the commands for each host; the ranks meet at the first"
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
    """Return a notice for each environment variable of other trainers that is ignored and not replaced by a setting."""
    seconds = environ.get("NCCL_TIMEOUT")
    if not seconds or any(argument.startswith("distributed.timeout") for argument in overrides):
        return []
    return [f"NCCL_TIMEOUT={seconds}: not read by a run; set distributed.timeout_s={seconds}"]


def advice_for_arguments(
    command: str, arguments: Sequence[str], takes_settings: bool = True, takes_file: bool = True
) -> str:
    """Return advice on the first argument that is known but does not belong to the command; "" if there is none."""
    of_flags = (
        _advice_for_flag(command, argument, takes_settings, takes_file)
        for argument in arguments
        if argument.startswith("-")
    )
    of_arguments = (_advice_for_argument(argument) for argument in arguments if command == "launch")
    return next(filter(None, (*of_flags, *of_arguments)), "")


def _advice_for_flag(command: str, argument: str, takes_settings: bool, takes_file: bool) -> str:
    from mpitrain.config.older.synonyms import INSTEAD

    given = argument.partition("=")[0]
    flag = given.replace("_", "-")
    if flag in _FILE_FLAGS:
        return f"{given}: {_instead_of_a_file_flag(command, takes_settings, takes_file)}"
    if flag in _FOLDER_FLAGS and command in _OF_A_RUN:
        return f"{given}: give the folder of a run, or its model.pt, as the first argument"
    if command == "launch" and flag in _INSTEAD_IN_LAUNCH:
        return f"{given}: {_BY_HAND}"
    text = argument.partition("=")[2]
    settings = _settings_of(flag, text or None, iter(["VALUE"]))
    if settings and takes_settings:
        return f"{given}: write {' '.join(settings)}"
    instead = INSTEAD.get(flag.removeprefix("--").replace("-", "_"), "")
    if settings or instead.startswith("it is a command-line option"):
        instead = "an option of mpitrain train"
    return instead and f"{given}: {instead}"


def _instead_of_a_file_flag(command: str, takes_settings: bool, takes_file: bool) -> str:
    if takes_file:
        return "write FILE.yaml without the option"
    if command in _OF_A_RUN:
        more = " and single settings as key.path=value" if takes_settings else ""
        return f"a run's settings are in its folder: mpitrain {command} FOLDER{more}"
    return "this command has no settings"


def _advice_for_argument(argument: str) -> str:
    from mpitrain.launch.presets import PRESETS
    from mpitrain.launch.schedulers.table import SCHEDULERS

    if argument in SCHEDULERS:
        return f"{argument}: write --scheduler {argument}"
    if argument in PRESETS:
        return f"{argument}: write --preset {argument}"
    if argument in ("train", "ensemble", "doctor"):
        return f"{argument}: write --run {argument}"
    if argument.endswith(".py"):
        return f"{argument}: a job runs mpitrain itself; a network of your own is model.name={argument}:NAME"
    return (
        ""
        if argument.startswith("-")
        else f"{argument}: a job accepts a file of settings (FILE.yaml) and settings as key.path=value"
    )


def _check_number(flag: str, name: str, text: str) -> None:
    """Raise LaunchError if the number given by an option differs from the launcher's variables.

    A process without a launcher is rank 0 of 1. If the launcher does not set the number, any value is accepted.
    """
    if not (text.isascii() and text.isdigit()):
        raise UserError(f"{flag} {text}: give a whole number, or leave the option out: the launcher sets it")
    from mpitrain.cluster.launchers import read_claims, without_inherited

    try:
        claims = [claim for claim in without_inherited(read_claims(os.environ), os.environ) if claim.rank is not None]
    except LaunchError:
        return  # the error in the variables is reported when the ranks start
    found = {getattr(claim, name) for claim in claims} - {None} if claims else {int(name.endswith("size"))}
    if found and int(text) not in found:
        numbers = " and ".join(map(str, sorted(found)))
        sources = " and ".join(claim.source for claim in claims) or "no launcher: this is one process"
        raise LaunchError(
            f"{flag} {text}: it is {numbers} ({sources}); leave the option out, because the launcher sets the number "
            "of ranks (mpirun -np N)"
        )


def to_current_flags(arguments: Sequence[str], own: Collection[str]) -> list[str]:
    """Return a command line (command first) with the current options; `own` are the options that the command has.

    Raises UserError if an option lacks its value, and LaunchError if a number contradicts the launcher's.
    """
    if not arguments or arguments[0] not in DIALECTS:
        return list(arguments)
    trains = not any(argument.partition("=")[0] in ("--run", "--ensemble") for argument in arguments)
    quick = QUICK_RUN if arguments[0] == "launch" and "--debug" in arguments and trains else ()
    # Before the user's own settings, so that those take precedence.
    return [arguments[0], *quick, *_translated(arguments[0], arguments[1:], own)]


def _translated(command: str, arguments: Sequence[str], own: Collection[str]) -> Iterator[str]:
    dialect, rest = DIALECTS[command], iter(arguments)
    for argument in rest:
        flag, equals, text = argument.partition("=")
        if not flag.startswith("-"):
            yield argument
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
