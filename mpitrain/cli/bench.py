"""`mpitrain bench`: its actions. Loads nothing but argparse, so that `--help` answers at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpitrain.cli.bench_collectives import add_collectives_action
from mpitrain.cli.bench_step import add_scaling_action, add_step_action

# Each adds one parser with its handler to `mpitrain bench`.
ACTIONS: tuple[Callable[[Any], None], ...] = (add_collectives_action, add_step_action, add_scaling_action)


def add_bench_command(commands: Any) -> None:
    """Add `bench` and its actions to the command tree."""
    bench = commands.add_parser(
        "bench", help="measure how fast this machine and its ranks are", description="Measurements, under mpirun too."
    )
    actions = bench.add_subparsers(title="actions", metavar="ACTION", required=True)
    for add_action in ACTIONS:
        add_action(actions)
