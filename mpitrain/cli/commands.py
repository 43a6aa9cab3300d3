"""The commands of `mpitrain`, in the order of its help. Every rank loads that of the command asked for alone."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

# The module of each command in this folder; its function add_NAME_command adds the command and its flags.
COMMANDS = {
    "train": "train",
    "ensemble": "ensemble",
    "config": "config",
    "data": "data",
    "verify": "checks",
    "doctor": "checks",
    "launch": "launch",
    "predict": "predict",
    "export": "predict",
    "report": "predict",
    "reproduce": "train",
    "bench": "bench.command",
    "help": "help",
}


def add_commands(commands: Any, given: Sequence[str]) -> None:
    """Add to argparse's subparsers the command that the words `given` begin with; all commands where they name none."""
    is_of_one = bool(given) and given[0] in COMMANDS and given[0] != "help"  # which names the others
    for name in given[:1] if is_of_one else COMMANDS:
        module = importlib.import_module(f"mpitrain.cli.{COMMANDS[name]}")
        getattr(module, f"add_{name}_command")(commands)
