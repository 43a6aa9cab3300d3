"""Arguments shared by several commands: a YAML file and single settings, numbers of ranks. Loads only argparse."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from mpitrain.data.formats import SUFFIXES
from mpitrain.errors import UserError

_YAML = (".yaml", ".yml")
_DATA = tuple(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the positional arguments `FILE.yaml | key.path=value`."""
    parser.add_argument(
        "settings", nargs="*", metavar="FILE.yaml | key.path=value", help="a YAML file first, then single settings"
    )


def add_trust_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--trust-code`, for commands that read files from other sources."""
    parser.add_argument(
        "--trust-code",
        action="store_true",
        help="run code that the settings of a run folder name as package.module:name, or that a model.pt of another "
        "program contains; only for sources that you trust (not needed for the components of mpitrain itself)",
    )


def add_overwrite_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--overwrite`, for commands that write a file named by the user."""
    parser.add_argument(
        "--overwrite", action="store_true", help="replace an existing file that this command has not written"
    )


def add_take_over_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--take-over`, for commands that claim a folder."""
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="use the folder although another launch has claimed it; for a launch that you know has ended, for example "
        "by the loss of its node; refused if the other launch is running on this computer",
    )


def has_nothing_to_do(options: argparse.Namespace) -> bool:
    """Return whether this process has nothing to do: a rank other than 0 of a command that runs in one process."""
    from mpitrain.cluster import claimed_rank

    return getattr(options, "one_process", False) and claimed_rank(os.environ) > 0


def is_file(argument: str) -> bool:
    """Return whether an argument is the name of a settings file; the file need not exist."""
    return "=" not in argument and argument.endswith(_YAML)


def is_data(argument: str) -> bool:
    """Return whether an argument is a name or pattern of data files; the files need not exist."""
    return "=" not in argument and argument.rstrip("/").lower().endswith(_DATA)


def split_settings(settings: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Return the YAML file and the overrides. Raises UserError for two files.

    The file is the argument that ends in .yaml or .yml, or the first argument if it has no equals sign.
    """
    files = [
        argument
        for number, argument in enumerate(settings)
        if is_file(argument) or (number == 0 and "=" not in argument)
    ]
    if len(files) > 1:
        raise UserError(f"{files[1]}: a second file of settings, after {files[0]}; give one, and the rest as key=value")
    return (Path(files[0]) if files else None), [argument for argument in settings if argument not in files]


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Return data files, YAML files and overrides; the name of an existing data file may contain an equals sign."""
    data: list[str] = []
    yaml_files: list[str] = []
    overrides: list[str] = []
    for argument in arguments:
        is_setting = "=" in argument and not Path(argument).exists()
        (overrides if is_setting else yaml_files if argument.endswith(_YAML) else data).append(argument)
    return data, yaml_files, overrides


def in_order(arguments: Sequence[str], given: Sequence[str]) -> list[str]:
    """Return the arguments in the order of the command line: the last one given for a key takes effect."""
    places = {argument: number for number, argument in enumerate(given)}
    return sorted(arguments, key=lambda argument: places.get(argument, len(given)))


def data_and_settings(
    options: argparse.Namespace, more: Sequence[str] = ()
) -> tuple[list[str], Path | None, list[str]]:  # fmt: skip
    """Return data files, the YAML file and the overrides of a command with `--data FILE ...`, in the given order.

    `more` are settings that argparse has assigned to another option. Raises UserError for two YAML files, and for
    `--data` without a file.
    """
    # `--data a.nc b.nc run.yaml seed=1`: argparse assigns all arguments after the option to it.
    files, yaml_files, settings = split_arguments(options.data or [])
    files += [argument for argument in options.settings if is_data(argument)]
    if options.data and not files:
        raise UserError(f"--data {' '.join(options.data)}: no data file; give one, or leave --data out")
    given = [argument for argument in options.settings if not is_data(argument)]
    arguments = in_order([*given, *settings, *more], options.given)
    path, overrides = split_settings([*yaml_files, *arguments])
    return files, path, overrides


def as_setting(files: Sequence[str]) -> str:
    """Return files as the value of a setting, in JSON, which YAML parses correctly for every file name.

    A single value that begins with a bracket is unchanged: it may be a list or a pattern, which the reader decides.
    """
    is_as_written = len(files) == 1 and (not files[0] or files[0].startswith("["))
    return files[0] if is_as_written else json.dumps(files[0] if len(files) == 1 else list(files), ensure_ascii=False)


def ranks_of(text: str, in_order: bool = True) -> list[int]:
    """Parse numbers of ranks such as 1,2,4, without duplicates; sorted if `in_order`. Raises UserError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f"--ranks {text}: give numbers of ranks such as 1,2,4")
    numbers = list(dict.fromkeys(map(int, parts)))
    return sorted(numbers) if in_order else numbers
