"""The files that the actions of `mpitrain bench` write besides standard output, and their flags."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mpitrain.cli.settings import add_overwrite_flag


def add_outputs(parser: argparse.ArgumentParser, drawn: str) -> None:
    """Add `--json`, and `--plot` with the words `drawn`."""
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there too")
    parser.add_argument("--plot", metavar="FILE.png", type=Path, help=drawn)
    add_overwrite_flag(parser)


def check_outputs(options: argparse.Namespace) -> None:
    """Raise OutputError for a file that cannot be written, before an hour is spent on measuring."""
    from mpitrain.bench.output import check_writable

    check_writable(options.json, "--json", options.overwrite)
    check_writable(options.plot, "--plot", options.overwrite)


def write_outputs(
    options: argparse.Namespace, action: str, record: Mapping[str, Any], draw: Callable[[], bytes],
    threads_per_rank: int | None = 1,
) -> None:  # fmt: skip
    """Write what the flags ask for: the record of an action with its machine, and what it draws. Raises OutputError."""
    from mpitrain.bench.output import write_bytes, write_json
    from mpitrain.bench.step_report import machine_record

    if options.json:
        machine = machine_record(threads_per_rank)
        write_json(options.json, {"command": f"bench {action}", "machine": machine, **record})
    if options.plot:
        write_bytes(options.plot, draw())
