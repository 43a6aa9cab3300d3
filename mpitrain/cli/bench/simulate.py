"""`mpitrain bench simulate`: its flags and its handler."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpitrain.bench.step_cases import NETWORK_HELP
from mpitrain.cli.bench.collectives import at_least
from mpitrain.cli.bench.outputs import add_outputs, check_outputs, write_outputs
from mpitrain.cli.bench.scaled_runs import DEFAULT_BATCH, scaled_runs
from mpitrain.cli.settings import add_settings, ranks_of
from mpitrain.cluster.starting import say_on_stderr
from mpitrain.errors import UserError

if TYPE_CHECKING:
    from mpitrain.bench.simulated.cluster import Cluster

LARGEST_DEFAULT_RANKS = 4096


def add_simulate_action(actions: Any) -> None:
    """Add `simulate` to the actions of `mpitrain bench`."""
    parser = actions.add_parser(
        "simulate",
        help="simulate a training step on a described cluster, to thousands of ranks",
        description="Measure the computation of one rank on this machine, and simulate the messages of the compiled "
        "engine's step on a cluster that a YAML file describes, by SimGrid: strong and weak scaling. --validate "
        "compares simulated steps with real ones on this machine. Network and batch may come from the settings of a "
        "run.",
    )
    add_settings(parser)
    parser.add_argument(
        "--cluster",
        metavar="FILE.yaml",
        type=Path,
        help="nodes: N, node: {cores: N}, network: {latency_us: X, bandwidth_gb_s: X}, and where known node: {ranks, "
        "core_speed, memory_latency_us, memory_bandwidth_gb_s}",
    )
    parser.add_argument("--validate", action="store_true", help="simulate this machine too, beside real steps on it")
    parser.add_argument("--ranks", metavar="LIST", help="powers of two (1,2,4,... to all of the cluster, at most 4096)")
    networks = "icenet,7-64-64-1"
    parser.add_argument("--networks", default=networks, metavar="LIST", help=f"{NETWORK_HELP} ({networks})")
    parser.add_argument(
        "--batch", type=at_least(1), metavar="N", help=f"samples of the batch ({DEFAULT_BATCH}; of settings their own)"
    )
    parser.add_argument("--rounds", type=at_least(1), default=3, metavar="N", help="measurements of each (3)")
    parser.add_argument(
        "--longest", type=float, default=0.5, metavar="S", help="seconds after which a measurement ends (0.5)"
    )
    add_outputs(parser, "draw the curves there")
    parser.set_defaults(handler=_run_simulate, engines=None)


def _run_simulate(options: argparse.Namespace) -> int:
    from mpitrain.bench.simulated.cluster import read_cluster
    from mpitrain.bench.simulated.prediction import Request, predict
    from mpitrain.bench.simulated.program import open_simulator
    from mpitrain.bench.simulated.report import draw_outcome, outcome_record, render_outcome
    from mpitrain.cluster.cores import detect_usable_core_count

    check_outputs(options)
    if options.cluster is None and not options.validate:
        raise UserError("give --cluster FILE.yaml, a described cluster, or --validate, or both")
    cluster = read_cluster(options.cluster) if options.cluster else None
    ranks = _ranks_on(cluster, options.ranks)
    runs = scaled_runs(options)
    simulator = open_simulator()
    cores = detect_usable_core_count()
    request = Request(runs, cluster, ranks, options.validate, cores, options.rounds, options.longest)
    outcome = predict(request, simulator, say_on_stderr)
    sys.stdout.write(render_outcome(outcome, cluster))
    write_outputs(options, "simulate", outcome_record(outcome, cluster), lambda: draw_outcome(outcome))
    return 0


def _ranks_on(cluster: Cluster | None, text: str | None) -> list[int]:
    """Return the numbers of ranks to simulate on the cluster. Raises UserError."""
    from mpitrain.bench.simulated.cluster import is_power_of_two, largest_power_of_two

    if cluster is None:
        if text is not None:
            raise UserError(f"--ranks {text}: those of the cluster; give --cluster FILE.yaml too")
        return []
    if text is None:
        most = largest_power_of_two(min(cluster.most_ranks, LARGEST_DEFAULT_RANKS))
        return [1 << power for power in range(most.bit_length())]
    ranks = ranks_of(text)
    if not all(map(is_power_of_two, ranks)):
        raise UserError(f"--ranks {text}: give powers of two, such as 1,64,4096: the layouts that are simulated")
    if ranks[-1] > cluster.most_ranks:
        raise UserError(
            f"--ranks {text}: {cluster.nodes} nodes of {cluster.ranks_per_node} ranks hold {cluster.most_ranks}; give "
            "fewer, or a larger cluster"
        )
    return ranks
