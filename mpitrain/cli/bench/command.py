"""The command `bench` and its actions `step` and `scaling`: options and handlers. Loads torch and MPI only on use."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mpitrain.bench.step_cases import (
    DEFAULT_BASELINE,
    DEFAULT_ENGINES,
    DEFAULT_SAMPLES,
    ENGINES,
    EXCHANGE,
    NETWORK_HELP,
    OTHER_BASELINE,
    OTHER_ENGINES,
    STEP_NETWORK_HELP,
    Engine,
    Network,
    ScaledRun,
    StepCase,
    default_samples,
    engines_of,
    network_of,
    step_network_of,
    timed_case,
)
from mpitrain.cli.bench.collectives import add_collectives_action, at_least
from mpitrain.cli.bench.outputs import add_outputs, check_outputs, write_outputs
from mpitrain.cli.settings import add_settings, add_trust_flag, ranks_of, split_settings
from mpitrain.cluster import INSTRUCTION_SETS, print_on_stderr
from mpitrain.errors import UserError

_LARGEST_DEFAULT_RANKS, _DEFAULT_SCALED_BATCH = 8, 4096


def add_bench_command(commands: Any) -> None:
    """Add `bench` and its actions to argparse's subparsers."""
    bench = commands.add_parser(
        "bench",
        help="measure the speed of this machine and its ranks",
        description="Measurements of speed, also under mpirun.",
    )
    actions = bench.add_subparsers(title="actions", metavar="ACTION", required=True)
    for add_action in (add_collectives_action, _add_step_action, _add_scaling_action):
        add_action(actions)


def _add_step_action(actions: Any) -> None:
    """Add `step` to the actions of `mpitrain bench`."""
    engines = "; ".join(f"{engine.name}: {engine.note}" for engine in ENGINES.values())
    parser = actions.add_parser(
        "step",
        help="time a training step: mpitrain's engines, plain PyTorch, and the C++ program",
        description="Time a training step of mpitrain's engines, of a plain PyTorch training loop, and of the "
        "C++ program, launched in turn in every round, on synthetic samples in memory. Run it without mpirun: "
        f"it starts its own ranks, with one thread each. The engines: {engines}. The column 'of peak' is the "
        "floating-point operations of the matrix products of a chain of layers, divided by the measured maximum of "
        "fused multiply-adds on the ranks' cores. Not included: the work once per epoch, and the warm-up.",
    )
    _add_common(parser, ranks="1,2", network_help=STEP_NETWORK_HELP)
    parser.add_argument(
        "--engines",
        metavar="LIST",
        help=f"list of engines (default: {','.join(DEFAULT_ENGINES)}; for networks that are not a chain of layers "
        f"{','.join(OTHER_ENGINES)})",
    )
    parser.add_argument("--batch", default="64", metavar="LIST", help="global batch sizes, or full (default: 64)")
    parser.add_argument(
        "--nodes", type=at_least(1), default=1, metavar="N",
        help="time mpitrain's engines also on N nodes that MPICH simulates on this machine, and one exchange of a "
        "step's message between them, without a network (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--instruction-set", default="native", choices=INSTRUCTION_SETS,
        help="compute.instruction_set of the compiled engine and of the measured peak (default: native)",
    )  # fmt: skip
    parser.add_argument(
        "--baseline", metavar="NAME", help="engine by whose time the other times are divided "
        f"(default: {DEFAULT_BASELINE}; for networks that are not a chain of layers {OTHER_BASELINE})",
    )  # fmt: skip
    parser.add_argument(
        "--samples",
        type=at_least(1),
        metavar="N",
        help=f"samples in memory (default: {DEFAULT_SAMPLES}, or 4 batches if more; for fields 2 batches)",
    )
    parser.set_defaults(handler=_run_step)


def _add_scaling_action(actions: Any) -> None:
    """Add `scaling` to the actions of `mpitrain bench`."""
    parser = actions.add_parser(
        "scaling",
        help="time a training step on 1, 2, ... ranks",
        description="Time a training step on several numbers of ranks, with one batch shared by all (strong scaling: "
        "efficiency t1 p1 / (t p)) and with one batch on each rank (weak scaling: t1 / t), where t1 and p1 belong to "
        "the smallest number of ranks. With the settings of a run, its network, engine, batch and threads are used, on "
        "synthetic samples of that shape; otherwise networks are given by name, with one thread per rank. "
        "Communication: the share of a step spent on messages, on reductions and on waiting for slower ranks. Run it "
        "without mpirun: it starts its own ranks; in an allocation of several nodes give --launcher.",
    )
    _add_common(parser, ranks=None, network_help=NETWORK_HELP)
    add_settings(parser)
    parser.add_argument("--data", metavar="FILE", help="the run's data file; the same as data.data_path=FILE")
    parser.add_argument(
        "--engines", metavar="LIST", help="list of engines (default: compiled-fixed); not with settings"
    )
    parser.add_argument(
        "--batch", type=at_least(1), metavar="N", help="batch size (default: 4096, or that of the settings)"
    )
    parser.add_argument(
        "--launcher",
        metavar="COMMAND",
        help="command that starts ranks with -n RANKS, also on several nodes, such as 'srun --mpi=pmi2' (default: "
        "mpirun, on this node)",
    )
    add_trust_flag(parser)
    parser.set_defaults(handler=_run_scaling)


def _add_common(parser: argparse.ArgumentParser, ranks: str | None, network_help: str) -> None:
    """Add the options that both actions have."""
    parser.add_argument(
        "--ranks",
        default=ranks,
        metavar="LIST",
        help=f"numbers of ranks (default: {ranks or 'one to all cores, at most 8'})",
    )
    networks = "icenet,7-64-64-1"
    parser.add_argument("--networks", default=networks, metavar="LIST", help=f"{network_help} (default: {networks})")
    parser.add_argument("--rounds", type=at_least(1), default=5, metavar="N", help="launches of each case (default: 5)")
    parser.add_argument(
        "--steps", type=at_least(1), metavar="N", help="steps timed in a round (default: 4000, fewer for large batches)"
    )
    parser.add_argument(
        "--warm-up",
        type=at_least(1),
        metavar="N",
        help="untimed steps before the timed ones (default: a tenth, at least 2)",
    )
    parser.add_argument(
        "--longest", type=float, default=1.0, metavar="S", help="time limit of a round in seconds (default: 1)"
    )
    parser.add_argument("--build", action="store_true", help="build the C++ program if it is not built yet")
    add_outputs(parser, "plot the results to this file")


def _run_step(options: argparse.Namespace) -> int:
    from mpitrain.bench.plots import draw_steps
    from mpitrain.bench.step import measure_steps
    from mpitrain.bench.step_report import render_steps
    from mpitrain.bench.step_results import with_ratios

    check_outputs(options)
    cases = step_cases(options)
    measured = measure_steps(cases, options.rounds, options.longest, options.build, print_on_stderr)
    baselines = {case.network.name: _baseline(options, case.network) for case in cases}
    results = with_ratios(measured, baselines)
    sys.stdout.write(render_steps(results, baselines))
    rows = [result.as_json() for result in results]
    write_outputs(options, "step", {"baselines": baselines, "rows": rows}, lambda: draw_steps(results))
    return 0


def step_cases(options: argparse.Namespace) -> list[StepCase]:
    """Return all combinations of engine, network, batch, ranks and nodes to be timed. Raises UserError."""
    step_counts = options.steps, options.warm_up
    cases = [
        replace(
            timed_case(network, batch, num_ranks, engine, _num_samples(options.samples, batch, network), *step_counts),
            instruction_set=options.instruction_set,
        )
        for num_ranks in ranks_of(options.ranks)
        for network in map(step_network_of, options.networks.split(","))
        for batch in batches_of(options.batch)
        for engine in _engines(options, network)
        if engines_of([_baseline(options, network)])
    ]
    if options.nodes == 1:
        return cases
    here = [case for case in cases if case.engine.kind == "ours" and case.num_ranks >= options.nodes]
    of_exchange = list({case.key: case for case in (replace(case, engine=EXCHANGE) for case in here)}.values())
    return [*cases, *(replace(case, num_nodes=options.nodes) for case in [*here, *of_exchange])]


def _engines(options: argparse.Namespace, network: Network) -> list[Engine]:
    usual = DEFAULT_ENGINES if network.is_chain else OTHER_ENGINES
    return engines_of(options.engines.split(",") if options.engines else usual)


def _baseline(options: argparse.Namespace, network: Network) -> str:
    return options.baseline or (DEFAULT_BASELINE if network.is_chain else OTHER_BASELINE)


def _run_scaling(options: argparse.Namespace) -> int:
    from mpitrain.bench.plots import draw_scaling
    from mpitrain.bench.step import measure_steps
    from mpitrain.bench.step_report import render_scaling, threads_of
    from mpitrain.bench.step_results import scaling_of
    from mpitrain.cluster import detect_usable_core_count

    check_outputs(options)
    options.settings += [f"data.data_path={options.data}"] if options.data else []
    up_to = range(1, min(detect_usable_core_count(), _LARGEST_DEFAULT_RANKS) + 1)
    ranks = ranks_of(options.ranks or ",".join(map(str, up_to)))
    cases = scaling_cases(options, ranks)
    # On one rank strong and weak scaling are the same case, which is measured once.
    unique = list({case.key: case for case in [*cases["strong"], *cases["weak"]]}.values())
    measured = measure_steps(unique, options.rounds, options.longest, options.build, print_on_stderr, options.launcher)
    by_key = {result.case.key: result for result in measured}
    results = [
        scaled
        for scaling, own in cases.items()
        for scaled in scaling_of([by_key[case.key] for case in own if case.key in by_key], scaling)
    ]
    sys.stdout.write(render_scaling(results))
    rows = [result.as_json() for result in results]
    write_outputs(options, "scaling", {"rows": rows}, lambda: draw_scaling(results), threads_of(measured))
    return 0


def _scaled_runs(options: argparse.Namespace) -> list[ScaledRun]:
    """Return all combinations of network and engine, or the one run given by settings. Raises UserError."""
    if options.settings:
        from mpitrain.bench.configured import configured_run

        if options.engines:
            raise UserError(f"--engines {options.engines}: not allowed with settings; give training.engine=... instead")
        return [configured_run(*split_settings(options.settings), options.batch, options.trust_code)]
    engines = engines_of((options.engines or "compiled-fixed").split(","))
    networks = map(network_of, options.networks.split(","))
    batch = options.batch or _DEFAULT_SCALED_BATCH
    return [ScaledRun(network, engine, batch) for network in networks for engine in engines]


def scaling_cases(options: argparse.Namespace, ranks: Sequence[int]) -> dict[str, list[StepCase]]:
    """Return the cases of strong and of weak scaling; on one rank both have the same samples per rank."""
    cases: dict[str, list[StepCase]] = {"strong": [], "weak": []}
    for run in _scaled_runs(options):
        for num_ranks in ranks:
            for scaling, batch in (("strong", run.batch_size), ("weak", run.batch_size * num_ranks)):
                cases[scaling].append(run.case(batch, num_ranks, options.steps, options.warm_up))
    return cases


def _num_samples(requested: int | None, batch: int | str, network: Network) -> int:
    if requested is not None:
        if batch != "full" and int(batch) > requested:
            raise UserError(f"--batch {batch}: larger than --samples {requested}")
        return requested
    if batch != "full":
        return default_samples(int(batch), network)
    if network.has_fields:
        raise UserError(f"--batch full: the samples of {network.name} are fields; give --samples too")
    return DEFAULT_SAMPLES


def batches_of(text: str) -> list[int | str]:
    """Parse batch sizes such as 64,4096,full. Raises UserError."""
    words = text.split(",")
    if not all(word == "full" or (word.isdecimal() and int(word) > 0) for word in words):
        raise UserError(f"--batch {text}: give numbers of samples such as 64,4096, or full")
    return [word if word == "full" else int(word) for word in words]
