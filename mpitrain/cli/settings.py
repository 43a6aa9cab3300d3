"""Arguments that several commands share: a YAML file and single settings, numbers of ranks. Loads only argparse."""

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
    """Add `FILE.yaml | key.path=value` words."""
    parser.add_argument(
        "settings", nargs="*", metavar="FILE.yaml | key.path=value", help="a YAML file first, then single settings"
    )


def add_trust_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--trust-code`, for commands that read files which others may have written."""
    parser.add_argument(
        "--trust-code",
        action="store_true",
        help="run the code that a run folder's settings name as package.module:name, or that a model.pt of another "
        "program holds; only for sources that you trust (the package's own components need no such flag)",
    )


def add_overwrite_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--overwrite`, for commands that write a file which the user names."""
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a file that is there and that this command has not written"
    )


def add_take_over_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--take-over`, for commands that claim a folder."""
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="use the folder although another launch has claimed it: you know that it is over, as after the loss of a "
        "node, and this computer cannot tell; a launch that runs on this computer keeps it",
    )


def is_of_rank_0_alone(options: argparse.Namespace) -> bool:
    """Return whether this process is a rank other than 0 of a command that runs in one process."""
    from mpitrain.cluster import claimed_rank

    return getattr(options, "one_process", False) and claimed_rank(os.environ) > 0


def is_file(word: str) -> bool:
    """Return whether a word is the name of a settings file, which need not exist."""
    return "=" not in word and word.endswith(_YAML)


def is_data(word: str) -> bool:
    """Return whether a word is a name or pattern of data files, which need not exist."""
    return "=" not in word and word.rstrip("/").lower().endswith(_DATA)


def split_settings(settings: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Return the YAML file, the first word or one that ends so, and the overrides. Raises UserError for two files."""
    files = [word for number, word in enumerate(settings) if is_file(word) or (number == 0 and "=" not in word)]
    if len(files) > 1:
        raise UserError(f"{files[1]}: a second file of settings, after {files[0]}; give one, and the rest as key=value")
    return (Path(files[0]) if files else None), [word for word in settings if word not in files]


def split_words(words: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Return data files, YAML files and overrides; a data file's own name may hold an equals sign."""
    data: list[str] = []
    yaml_files: list[str] = []
    overrides: list[str] = []
    for word in words:
        is_setting = "=" in word and not Path(word).exists()
        (overrides if is_setting else yaml_files if word.endswith(_YAML) else data).append(word)
    return data, yaml_files, overrides


def in_order(words: Sequence[str], given: Sequence[str]) -> list[str]:
    """Return the words in the order of the command line: of two for one key the last counts."""
    places = {word: number for number, word in enumerate(given)}
    return sorted(words, key=lambda word: places.get(word, len(given)))


def data_and_settings(
    options: argparse.Namespace, more: Sequence[str] = ()
) -> tuple[list[str], Path | None, list[str]]:  # fmt: skip
    """Return data files, the YAML file and the overrides of a command with `--data FILE ...`, in the given order.

    `more`: words that another flag has taken. Raises UserError for two YAML files, and for `--data` without a file.
    """
    # `--data a.nc b.nc run.yaml seed=1`: argparse gives the flag all words after it.
    files, yaml_files, settings = split_words(options.data or [])
    files += [word for word in options.settings if is_data(word)]
    if options.data and not files:
        raise UserError(f"--data {' '.join(options.data)}: no data file; give one, or leave --data out")
    given = [word for word in options.settings if not is_data(word)]
    words = in_order([*given, *settings, *more], options.given)
    path, overrides = split_settings([*yaml_files, *words])
    return files, path, overrides


def as_setting(files: Sequence[str]) -> str:
    """Return files as the value of a setting: as JSON, which YAML reads whatever a name holds.

    What begins with a bracket stays as it is written: whether it is a list or a pattern is told where it is read.
    """
    is_as_written = len(files) == 1 and (not files[0] or files[0].startswith("["))
    return files[0] if is_as_written else json.dumps(files[0] if len(files) == 1 else list(files), ensure_ascii=False)


def ranks_of(text: str, in_order: bool = True) -> list[int]:
    """Read 1,2,4, without repetition; rising, or as given where not `in_order`. Raises UserError."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise UserError(f"--ranks {text}: give numbers of ranks such as 1,2,4")
    numbers = list(dict.fromkeys(map(int, words)))
    return sorted(numbers) if in_order else numbers
