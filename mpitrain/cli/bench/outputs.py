"""Output files of the actions of `mpitrain bench`, and the options that name them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mpitrain.cli.settings import add_overwrite_flag


def add_outputs(parser: argparse.ArgumentParser, plot_help: str) -> None:
    """Add `--json`, and `--plot` with the help text `plot_help`."""
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the results to this file")
    parser.add_argument("--plot", metavar="FILE.png", type=Path, help=plot_help)
    add_overwrite_flag(parser)


def check_outputs(options: argparse.Namespace) -> None:
    """Raise OutputError if an output file cannot be written; called before the measurement, which may take an hour."""
    from mpitrain.bench.output import check_writable

    check_writable(options.json, "--json", options.overwrite)
    check_writable(options.plot, "--plot", options.overwrite)


def write_outputs(
    options: argparse.Namespace, action: str, record: Mapping[str, Any], draw: Callable[[], bytes],
    threads_per_rank: int | None = 1,
) -> None:  # fmt: skip
    """Write the files named by `--json` (the record and the machine) and `--plot` (from `draw`). Raises OutputError."""
    from mpitrain.bench.output import write_bytes, write_json
    from mpitrain.bench.step_report import machine_record

    if options.json:
        machine = machine_record(threads_per_rank)
        write_json(options.json, {"command": f"bench {action}", "machine": machine, **record})
    if options.plot:
        write_bytes(options.plot, draw())
