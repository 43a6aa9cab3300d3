"""`mpitrain bench ensemble`: its flags and its handler."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from mpitrain.bench.step_cases import NETWORK_HELP, network_of
from mpitrain.cli.bench.collectives import at_least
from mpitrain.cli.bench.outputs import add_outputs, check_outputs, write_outputs
from mpitrain.cluster.starting import say_on_stderr


def add_ensemble_action(actions: Any) -> None:
    """Add `ensemble` to the actions of `mpitrain bench`."""
    parser = actions.add_parser(
        "ensemble",
        help="time an ensemble beside separate launches and loops over plain PyTorch",
        description="Time an ensemble on synthetic data, beside the same members launched one by one and beside loops "
        "over plain PyTorch, of which a part is measured. Run it without mpirun: it starts its own ranks.",
    )
    for flag, least, default, meaning in (
        ("--members", 3, 64, "networks, more than 2"),
        ("--epochs", 2, 20, "epochs of each, more than 1"),
        ("--ranks", 1, 2, "ranks that train them"),
        ("--alone", 1, 3, "members that are launched one by one"),
        ("--rounds", 1, 3, "rounds of which medians are taken"),
    ):
        parser.add_argument(flag, type=at_least(least), default=default, metavar="N", help=f"{meaning} ({default})")
    parser.add_argument("--network", default="7-64-64-1", metavar="NAME", help=f"{NETWORK_HELP} (7-64-64-1)")
    parser.add_argument(
        "--memory", type=at_least(1), metavar="N", help="also measure memory, with so many samples (such as 4000000)"
    )
    add_outputs(parser)
    parser.set_defaults(handler=_run_ensemble)


def _run_ensemble(options: argparse.Namespace) -> int:
    import os
    from tempfile import TemporaryDirectory

    from mpitrain.bench.ensemble import measure
    from mpitrain.bench.step import check_not_launched

    check_outputs(options)
    check_not_launched(os.environ)
    alone = min(options.alone, options.members)
    case = measure.EnsembleCase(
        network_of(options.network), options.members, options.epochs, options.ranks, alone, options.rounds
    )
    with TemporaryDirectory(prefix="mpitrain_bench_") as folder:
        times = measure.measure_ensemble(case, Path(folder), say_on_stderr)
        memory = options.memory and measure.measure_memory(case, options.memory, Path(folder), say_on_stderr)
    sys.stdout.write(measure.render(case, times, memory or None))
    write_outputs(options, "ensemble", measure.as_record(case, times, memory or None))
    return 0
