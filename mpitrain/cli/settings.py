"""The words that commands of a run share: a YAML file, then single settings."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


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
