"""Words that several commands read alike: a YAML file and single settings, numbers of ranks. Loads only argparse."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from mpitrain.errors import UserError


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add `FILE.yaml | key.path=value` words."""
    parser.add_argument(
        "settings", nargs="*", metavar="FILE.yaml | key.path=value", help="a YAML file first, then single settings"
    )


def split_settings(settings: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Return the YAML file, if the first word is one, and the overrides."""
    if settings and "=" not in settings[0]:
        return Path(settings[0]), list(settings[1:])
    return None, list(settings)


def ranks_of(text: str) -> list[int]:
    """Read 1,2,4, rising and without repetition. Raises UserError."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise UserError(f"--ranks {text}: give numbers of ranks such as 1,2,4")
    return sorted(set(map(int, words)))
