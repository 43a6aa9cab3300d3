"""The commands `train` and `config`: flags and handlers. Loads nothing but argparse until one runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpitrain.cli.loading import begin_starting, load_once_a_node, open_files_early
from mpitrain.cli.settings import (
    add_settings,
    as_setting,
    in_order,
    is_file,
    split_settings,
    split_words,
)

if TYPE_CHECKING:
    from mpitrain.comm.ranks import Ranks

_MODULES = ("mpitrain.comm.start", "mpitrain.runs.beginning", "mpitrain.runs.train_run")
_FLAGS = {
    "epochs": ("training.epochs", "N", "number of passes over the training samples"),
    "batch_size": ("training.batch_size", "N", "samples per rank and step (global: training.global_batch_size=N)"),
    "lr": ("training.optimizer.learning_rate", "X", "learning rate at the start"),
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
        help="how much the ranks' logs hold (default: info)",
    )
    existing = train.add_mutually_exclusive_group()
    existing.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="PATH",
        help="continue the run in the run folder from its newest checkpoint; or the run of this folder, or from this "
        "checkpoint",
    )
    existing.add_argument("--overwrite", action="store_true", help="replace the run in the run folder")
    train.set_defaults(handler=_run_train)


def add_reproduce_command(commands: Any) -> None:
    """Add `reproduce` to argparse's subparsers."""
    reproduce = commands.add_parser(
        "reproduce",
        help="train a run again from its own record and compare the weights",
        description="Train a run again from its run_record.json and compare the weights' hash; also on another number "
        "of ranks. Data files that have changed are refused by name, and what differs from then is told. Exit codes: "
        "0 equal, 1 not equal, 2 it cannot be trained again, 3 wrong number of ranks.",
    )
    reproduce.add_argument("run", metavar="RUN_FOLDER", help="folder of the run")
    reproduce.add_argument("--output", metavar="FOLDER", help="where to train it again (default: RUN-reproduced)")
    reproduce.add_argument(
        "--trust-code", action="store_true", help="run a network that is code (model.name=package.module:callable)"
    )
    reproduce.set_defaults(handler=_run_reproduce)


def add_config_command(commands: Any) -> None:
    """Add `config` to argparse's subparsers."""
    config = commands.add_parser("config", help="show, check or document settings", description="Settings of a run.")
    actions = config.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, text, handler in (
        ("show", "print every setting with its value", _run_config_show),
        ("check", "say whether the settings are valid", _run_config_check),
    ):
        action = actions.add_parser(name, help=text, description=text)
        add_settings(action)
        action.set_defaults(handler=handler)
    explain = actions.add_parser(
        "explain",
        help="say what a setting is, takes, and is unless set",
        description="Say what settings are, what they take and what they are unless set; sections, parts of names and "
        "other trainers' names are understood. Without a KEY: all of them.",
    )
    explain.add_argument("keys", nargs="*", metavar="KEY", help="such as training.epochs, scheduler or warmup")
    explain.set_defaults(handler=_run_config_explain)
    schema = actions.add_parser(
        "schema", help="print the JSON schema of all settings", description="Print the JSON schema."
    )
    schema.set_defaults(handler=_run_config_schema)


def _run_train(options: argparse.Namespace) -> int:
    from mpitrain.comm.supervision.node_watch import watching_start

    starting = begin_starting(options.log_level)
    resumed, resume_words = options.resume, []
    # argparse gives `--resume` the next word, which may be a setting or the file of settings.
    if resumed and ("=" in resumed or is_file(resumed)):
        resumed, resume_words = "", [resumed]
    # `--data a.nc b.nc run.yaml seed=1`: argparse gives the flag all words after it.
    files, yaml_files, settings = split_words(options.data or [])
    words = in_order([*options.settings, *settings, *resume_words], options.given)
    path, overrides = split_settings([*yaml_files, *words])
    flags = {name: getattr(options, name) for name in _FLAGS} | {"data": as_setting(files) if files else None}
    overrides += [f"{key}={flags[name]}" for name, (key, _, _) in _FLAGS.items() if flags[name] is not None]
    with watching_start(config_path=path, overrides=overrides) as watch:
        load_once_a_node(watch, _MODULES, starting)
        if options.settings or options.data:
            open_files_early(os.environ)
        from mpitrain.comm.start import run_on_all_ranks
        from mpitrain.runs.beginning import TrainRequest
        from mpitrain.runs.train_run import train
    starting.now("finding the ranks")
    request = TrainRequest(
        config_path=path,
        overrides=tuple(overrides),
        resume=resumed is not None,
        resume_from=Path(resumed) if resumed else None,
        overwrite=options.overwrite,
        log_level=options.log_level,
    )

    def body(ranks: Ranks) -> int:
        ranks.starting = starting
        return train(ranks, request)

    return run_on_all_ranks(body, watch)


def _run_reproduce(options: argparse.Namespace) -> int:
    from mpitrain.comm.supervision.node_watch import watching_start

    starting = begin_starting("info")
    with watching_start() as watch:
        load_once_a_node(watch, _MODULES, starting)
        from mpitrain.comm.start import run_on_all_ranks
        from mpitrain.runs.reproduction.reproduce import ReproduceRequest, reproduce
    starting.now("finding the ranks")
    output = Path(options.output) if options.output else None
    request = ReproduceRequest(Path(options.run), output, options.trust_code)

    def body(ranks: Ranks) -> int:
        ranks.starting = starting
        return reproduce(ranks, request)

    return run_on_all_ranks(body, watch)


def _run_config_show(options: argparse.Namespace) -> int:
    from mpitrain.config import load_run_config, render_yaml

    loaded = load_run_config(*split_settings(options.settings))
    sys.stdout.write(render_yaml(loaded.config))
    return _print_notices(loaded.notices)


def _run_config_check(options: argparse.Namespace) -> int:
    from mpitrain.config import load_run_config

    path, overrides = split_settings(options.settings)
    loaded = load_run_config(path, overrides)
    _print_notices(loaded.notices)
    sys.stdout.write(f"{path or 'settings'}: valid\n")
    return 0


def _run_config_explain(options: argparse.Namespace) -> int:
    from mpitrain.config.advice.explain import explain_settings

    sys.stdout.write(explain_settings(options.keys))
    return 0


def _run_config_schema(options: argparse.Namespace) -> int:
    from mpitrain.config import render_schema

    sys.stdout.write(render_schema())
    return 0


def _print_notices(notices: Sequence[str]) -> int:
    for line in notices:
        sys.stderr.write(f"note: {line}\n")
    return 0
