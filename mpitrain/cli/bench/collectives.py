"""`mpitrain bench collectives`: options and handler."""

from __future__ import annotations

import argparse
import re
from functools import partial
from typing import Any

from mpitrain.cli.bench.outputs import add_outputs, check_outputs, write_outputs

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "exchange")
TRANSPORTS = ("mpi4py", "mpi", "gloo", "nccl")


def add_collectives_action(actions: Any) -> None:
    """Add `collectives` to the actions of `mpitrain bench`."""
    parser = actions.add_parser(
        "collectives",
        help="time and check collectives between the ranks",
        description="Time collectives of mpi4py and of torch.distributed with the mpi, gloo and nccl backends, "
        "interleaved in one run, and check all values: mpirun -np 2 python -m mpitrain bench collectives. "
        "algbw = bytes / time, busbw = algbw times the collective's factor, as defined by nccl-tests. "
        "Exit codes: 0 all values are correct, 3 wrong values or a wrong launch.",
    )
    for flag, default, meaning in (("--min-bytes", "4", "smallest size"), ("--max-bytes", "64M", "largest size")):
        text = f"{meaning} in bytes, summed over the ranks if each has a part; K, M, G are binary (default: {default})"
        parser.add_argument(flag, type=num_bytes, default=num_bytes(default), metavar="BYTES", help=text)
    for flag, default_number, lowest, meaning in (
        ("--factor", 4, 2, "ratio of successive sizes"),
        ("--rounds", 11, 1, "samples of each transport and size"),
        ("--warm-up", 2, 0, "untimed rounds before the timed ones"),
    ):
        text = f"{meaning} (default: {default_number})"
        parser.add_argument(flag, type=at_least(lowest), default=default_number, metavar="N", help=text)
    parser.add_argument(
        "--sample-ms",
        type=at_least(1),
        default=4,
        metavar="MS",
        help="duration of one timing sample in milliseconds (default: 4)",
    )
    parser.add_argument(
        "--collectives",
        type=names_of(COLLECTIVES),
        default=("all_reduce",),
        metavar="LIST",
        help=f"all, or a list from {','.join(COLLECTIVES)} (default: all_reduce)",
    )
    parser.add_argument(
        "--transports",
        type=names_of(TRANSPORTS),
        metavar="LIST",
        help=f"a list from {','.join(TRANSPORTS)} (default: all that this launch supports)",
    )
    add_outputs(parser, "plot time and busbw against size to this file")
    parser.set_defaults(handler=_run)


def _run(options: argparse.Namespace) -> int:
    from mpitrain.comm import watching_start

    with watching_start() as watch:
        from mpitrain.bench.collectives import CollectivesRequest, bench_collectives
        from mpitrain.bench.measurement import Plan
        from mpitrain.comm import run_on_all_ranks
    request = CollectivesRequest(
        options.collectives,
        options.transports,
        options.min_bytes,
        options.max_bytes,
        options.factor,
        Plan(options.rounds, options.warm_up, options.sample_ms / 1e3),
    )
    check, write = partial(check_outputs, options), partial(write_outputs, options, "collectives")
    return run_on_all_ranks(lambda ranks: bench_collectives(ranks, request, check, write), watch)


def num_bytes(text: str) -> int:
    """Parse a number of bytes such as 4, 64K, 16M or 1G. Raises argparse's error for anything else."""
    found = re.fullmatch(r"([0-9]+)([KMG]?)i?B?", text, re.IGNORECASE)
    if found is None or int(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text}: give a number of bytes such as 4, 64K or 16M")
    return int(found[1]) * _UNITS[found[2].upper()]


def at_least(lowest: int) -> Any:
    """Return an argparse type that parses a whole number of at least `lowest`."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < lowest:
            raise argparse.ArgumentTypeError(f"{text}: give a whole number of at least {lowest}")
        return int(text)

    return read


def names_of(known: tuple[str, ...]) -> Any:
    """Return an argparse type for "all" or a comma-separated list of `known` names; the result has their order."""

    def read(text: str) -> tuple[str, ...]:
        names = known if text == "all" else tuple(text.split(","))
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r}: unknown; allowed are {', '.join(known)}")
        return tuple(name for name in known if name in names)

    return read
