"""The commands `train` and `reproduce`: options and handlers. Loads only argparse until one runs."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpitrain.cli.older_flags import QUICK_RUN, unread_variables
from mpitrain.cli.settings import (
    add_settings,
    add_take_over_flag,
    add_trust_flag,
    as_setting,
    data_and_settings,
    is_file,
)
from mpitrain.cluster.starting import FINDING

if TYPE_CHECKING:
    from mpitrain.cluster import Starting
    from mpitrain.comm import Ranks

_FLAGS = {
    "epochs": ("training.epochs", "N", "number of passes over the training samples"),
    "batch_size": ("training.batch_size", "N", "samples per rank and step (global: training.global_batch_size=N)"),
    "lr": ("training.optimizer.learning_rate", "X", "initial learning rate"),
    "data": (
        "data.data_path",
        "FILE",
        "data files or patterns (NetCDF, HDF5, .npz); without it, a synthetic CICE history is written",
    ),
    "output": ("output.model_dir", "FOLDER", "run folder (default: mpitrain_run)"),
}


def add_train_command(commands: Any) -> None:
    """Add `train` to argparse's subparsers."""
    train = commands.add_parser(
        "train", help="train a network (the default command)", description="Train a network on all ranks."
    )
    add_settings(train)
    for name, (key, metavar, text) in _FLAGS.items():
        nargs = "+" if name == "data" else None
        text = f"{text}; the same as {key}={metavar}"
        train.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, nargs=nargs, help=text)
    train.add_argument(
        "--log-level",
        type=str.lower,
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="level of the ranks' logs (default: info)",
    )
    train.add_argument(
        "--debug",
        action="store_true",
        help=f"a quick test run: log level debug and these defaults: {' '.join(QUICK_RUN)}",
    )
    existing = train.add_mutually_exclusive_group()
    existing.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="PATH",
        help="continue the run in the run folder, or in PATH, from its newest checkpoint; if PATH is a checkpoint, "
        "continue from it",
    )
    existing.add_argument("--overwrite", action="store_true", help="replace the run in the run folder")
    add_take_over_flag(train)
    add_trust_flag(train)
    train.set_defaults(handler=_run_train)


def add_reproduce_command(commands: Any) -> None:
    """Add `reproduce` to argparse's subparsers."""
    reproduce = commands.add_parser(
        "reproduce",
        help="train a run again from its record and compare the weights",
        description="Train a run again from its run_record.json and compare the hash of the weights; the number of "
        "ranks may differ. A changed data file is an error, which names the file; differences in versions and "
        "machine are listed. Exit codes: 0 equal, 1 not equal, 2 the run cannot be trained again, 3 wrong number of "
        "ranks.",
    )
    reproduce.add_argument("run", metavar="RUN_FOLDER", help="folder of the run")
    reproduce.add_argument("--output", metavar="FOLDER", help="folder of the new run (default: RUN-reproduced)")
    reproduce.add_argument(
        "--data", metavar="FILE", nargs="+", default=[],
        help="present paths or patterns of the data files, in the run's order (default: as recorded, or in RUN_FOLDER)",
    )  # fmt: skip
    add_trust_flag(reproduce)
    reproduce.set_defaults(handler=_run_reproduce)


def _run_train(options: argparse.Namespace) -> int:
    log_level = "debug" if options.debug else options.log_level
    with begin_starting(log_level) as starting:
        return _train(options, log_level, starting)


def _train(options: argparse.Namespace, log_level: str, starting: Starting) -> int:
    from mpitrain.comm import watching_start

    resumed, resume_arguments = options.resume, []
    # argparse assigns the next argument to `--resume`; it may be a setting or the file of settings.
    if resumed and ("=" in resumed or is_file(resumed)):
        resumed, resume_arguments = "", [resumed]
    files, path, overrides = data_and_settings(options, resume_arguments)
    flags = {name: getattr(options, name) for name in _FLAGS} | {"data": as_setting(files) if files else None}
    overrides += [f"{key}={flags[name]}" for name, (key, _, _) in _FLAGS.items() if flags[name] is not None]
    with watching_start(config_path=path, overrides=overrides) as watch:
        from mpitrain.comm import run_on_all_ranks
        from mpitrain.runs.beginning import TrainRequest
        from mpitrain.runs.train_run import train
    starting.now(FINDING)
    request = TrainRequest(
        config_path=path,
        overrides=tuple(overrides),
        resume=resumed is not None,
        resume_from=Path(resumed) if resumed else None,
        overwrite=options.overwrite,
        takes_over=options.take_over,
        log_level=log_level,
        trust_code=options.trust_code,
        quick_run=QUICK_RUN if options.debug and resumed is None else (),
    )

    def body(ranks: Ranks) -> int:
        ranks.starting = starting
        ranks.notices.extend(unread_variables(os.environ, overrides))
        return train(ranks, request)

    return run_on_all_ranks(body, watch)


def _run_reproduce(options: argparse.Namespace) -> int:
    with begin_starting("info") as starting:
        return _reproduce(options, starting)


def _reproduce(options: argparse.Namespace, starting: Starting) -> int:
    from mpitrain.comm import watching_start

    with watching_start() as watch:
        from mpitrain.comm import run_on_all_ranks
        from mpitrain.runs.reproduction.reproduce import ReproduceRequest, reproduce
    starting.now(FINDING)
    output = Path(options.output) if options.output else None
    request = ReproduceRequest(Path(options.run), output, options.trust_code, tuple(options.data))

    def body(ranks: Ranks) -> int:
        ranks.starting = starting
        return reproduce(ranks, request)

    return run_on_all_ranks(body, watch)


def begin_starting(log_level: str) -> Starting:
    """Return the start-up progress, in the stage of loading packages; the root prints stages that take long."""
    from mpitrain.cluster import Starting, claimed_rank, print_on_stderr
    from mpitrain.cluster.starting import LOADING, said_after_s

    if log_level != "debug":
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch's C++ code bypasses Python's warnings
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # torch's profiler prints when it starts and stops
    starting = Starting(print_on_stderr if claimed_rank(os.environ) == 0 else None, said_after_s(os.environ))
    starting.now(LOADING)
    return starting
