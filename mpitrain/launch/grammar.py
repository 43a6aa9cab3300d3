"""Allowed forms of the texts of a job request.

Quoting alone is not safe, because a newline in a quoted `#SBATCH` value starts a new command. A value in a directive
must match a regular expression from end to end; a value that is only quoted must be one line.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

# `MM:SS` is not allowed: many of its users mean HH:MM.
_WALLTIMES = "HH:MM:SS, D-HH:MM:SS or whole minutes"
_CLOCK = re.compile(r"(?:([0-9]{1,3})-)?([0-9]{1,4}):([0-5][0-9]):([0-5][0-9])")
_MINUTES = re.compile(r"[1-9][0-9]{0,6}")
_PATH_CHARACTERS = r"[A-Za-z0-9_./+,@%=-]"


def _matching(pattern: str, allowed: str) -> AfterValidator:
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if compiled.fullmatch(text) is None:
            raise ValueError(f"allowed is {allowed}")
        return text

    return AfterValidator(check)


def _check_quotable(text: str) -> str:
    # Quoting does not make control characters, line separators and halves of surrogate pairs harmless.
    if not text or not text.isprintable():
        raise ValueError("allowed is one line of printable characters")
    return text


def _check_path(text: str) -> str:
    if _check_quotable(text).startswith("-"):
        raise ValueError("a path that starts with - would be read as an option; write ./ before it")
    return text


def _check_environment(text: str) -> str:
    name, equals, _ = text.partition("=")
    if not equals or re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is None:
        raise ValueError("allowed is NAME=VALUE, NAME of letters, digits and _")
    # bash executes the values of BASH_ENV and PS4; a scheduler's variables identify each rank.
    if re.match(r"BASH|ENV$|PS4$|SHELLOPTS$|IFS$|SLURM_|PBS_", name):
        raise ValueError("variables of the shell and of the scheduler cannot be set here; use another name")
    return _check_quotable(text)


def _check_setting(text: str) -> str:
    if re.fullmatch(r"[A-Za-z_][^=]*=.*", _check_quotable(text)) is None:
        raise ValueError("allowed is key.path=value on one line")
    return text


def _check_sweep(text: str) -> str:
    _, equals, values = _check_quotable(text).partition("=")
    if not equals or not all(values.split(",")):
        raise ValueError("give a key and its values, such as training.optimizer.learning_rate=1e-3,1e-4")
    return _check_setting(text)


def walltime_seconds(text: str) -> int:
    """Return the walltime in seconds. Raises ValueError with the allowed forms."""
    if _MINUTES.fullmatch(text):
        return 60 * int(text)
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise ValueError(f"allowed is {_WALLTIMES}")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    if match[1] is not None and hours > 23:
        raise ValueError(f"allowed is {_WALLTIMES}; after days, hours are at most 23")
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if total == 0:
        raise ValueError(f"allowed is {_WALLTIMES}, more than 0")
    return total


def clock_text(seconds: int) -> str:
    """Return seconds as HH:MM:SS, with hours that may exceed 23: all schedulers accept this form."""
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def _check_walltime(text: str) -> str:
    walltime_seconds(text)
    return text


JobName = Annotated[
    str, _matching(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", "a letter, then up to 63 letters, digits, _ . or -")
]
QueueName = Annotated[str, _matching(r"[A-Za-z0-9_][A-Za-z0-9_.,@-]{0,127}", "letters, digits, _ . , @ or -")]
AccountName = Annotated[str, _matching(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,127}", "letters, digits, _ . : @ or -")]
Memory = Annotated[str, _matching(r"[1-9][0-9]{0,8}[KMGT]", "a whole number and K, M, G or T, such as 64G")]
Mail = Annotated[
    str, _matching(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}@[A-Za-z0-9][A-Za-z0-9.-]{0,250}", "an address: you@site.org")
]
ModuleName = Annotated[
    str, _matching(r"[A-Za-z0-9_][A-Za-z0-9_./+-]{0,127}", "letters, digits, _ . / + or -, such as netcdf/4.9")
]
InterfaceName = Annotated[
    str, _matching(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}", "an interface as `ip link` lists it, such as eth0")
]
AdapterNames = Annotated[
    str,
    _matching(r"[A-Za-z0-9][A-Za-z0-9_]{0,31}(?::[0-9])?(?:,[A-Za-z0-9][A-Za-z0-9_]{0,31}(?::[0-9])?)*", "mlx5_0,..."),
]
HostName = Annotated[str, _matching(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}", "a host's name or IPv4 address")]
EnvironmentLine = Annotated[str, AfterValidator(_check_environment)]
SettingText = Annotated[str, AfterValidator(_check_setting)]
SweepText = Annotated[str, AfterValidator(_check_sweep)]
Walltime = Annotated[str, AfterValidator(_check_walltime)]
PathText = Annotated[str, AfterValidator(_check_path)]

# Regular expressions for the values of a job's environment variables, matched from end to end.
COUNT = "[1-9][0-9]{0,8}"
COUNT_OR_ZERO = "0|[1-9][0-9]{0,17}"
NUMBER = r"[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?"
BATCH_SIZE = f"{COUNT}|full"
PATH = f"[A-Za-z0-9_./]{_PATH_CHARACTERS}*"
BACKEND = "auto|mpi|gloo|nccl|nccl_if_available"
LOG_LEVEL = "debug|info|warning|error|DEBUG|INFO|WARNING|ERROR"
