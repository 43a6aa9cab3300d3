"""The command `ensemble`: options and handler. Loads only argparse until it runs."""

from __future__ import annotations

import argparse
from typing import Any

from mpitrain.cli.settings import add_settings, add_take_over_flag, add_trust_flag, as_setting, data_and_settings

_FLAGS = {
    "members": ("ensemble.members", "N", "number of seeds"),
    "folds": ("ensemble.folds", "K", "number of folds: each part of the samples is held out once"),
    "ranks_per_member": (
        "ensemble.ranks_per_member",
        "N",
        "ranks that train one member (default: the smallest number that keeps all ranks busy)",
    ),
    "epochs": ("training.epochs", "N", "number of passes over the training samples"),
    "data": ("data.data_path", "FILE", "data files or patterns; without it, a synthetic file is written"),
    "output": ("output.model_dir", "FOLDER", "the ensemble's folder (default: mpitrain_ensemble)"),
}


def add_ensemble_command(commands: Any) -> None:
    """Add `ensemble` to argparse's subparsers."""
    ensemble = commands.add_parser(
        "ensemble",
        help="train many networks in one launch: seeds, folds, settings",
        description="Train an ensemble. Each member is a run with its own folder and the same weights as if trained "
        "alone. The section `ensemble` of the settings defines the members.",
    )
    add_settings(ensemble)
    for name, (key, metavar, text) in _FLAGS.items():
        flag = f"--{name.replace('_', '-')}"
        nargs = "+" if name == "data" else None
        ensemble.add_argument(flag, metavar=metavar, nargs=nargs, help=f"{text}; the same as {key}={metavar}")
    ensemble.add_argument(
        "--dry-run", action="store_true", help="list the members with their estimated cost; train nothing"
    )
    existing = ensemble.add_mutually_exclusive_group()
    existing.add_argument(
        "--resume", action="store_true", help="train the members that the folder lacks, including added ones"
    )
    existing.add_argument("--overwrite", action="store_true", help="replace the ensemble in the folder")
    add_take_over_flag(ensemble)
    add_trust_flag(ensemble)
    ensemble.set_defaults(handler=_run_ensemble)


def _run_ensemble(options: argparse.Namespace) -> int:
    from mpitrain.comm import watching_start

    files, path, overrides = data_and_settings(options)
    flags = {name: getattr(options, name) for name in _FLAGS} | {"data": as_setting(files) if files else None}
    overrides += [f"{key}={flags[name]}" for name, (key, _, _) in _FLAGS.items() if flags[name] is not None]
    with watching_start(config_path=path, overrides=overrides) as watch:
        from mpitrain.comm import run_on_all_ranks
        from mpitrain.ensemble.beginning import EnsembleRequest
        from mpitrain.ensemble.run_ensemble import run_ensemble
    how = options.resume, options.overwrite, options.take_over, options.dry_run, options.trust_code
    request = EnsembleRequest(path, tuple(overrides), *how)
    return run_on_all_ranks(lambda ranks: run_ensemble(ranks, request), watch)
