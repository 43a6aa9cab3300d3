"""The arguments of `mpitrain bench scaling` and `simulate`: networks by name, or the settings of a run."""

from __future__ import annotations

import argparse

from mpitrain.bench.step_cases import ScaledRun, engines_of, network_of
from mpitrain.cli.settings import split_settings
from mpitrain.errors import UserError

DEFAULT_ENGINE, DEFAULT_BATCH = "compiled-fixed", 4096


def scaled_runs(options: argparse.Namespace) -> list[ScaledRun]:
    """Return each engine on each of the networks, or the one run of the settings. Raises UserError."""
    if options.settings:
        from mpitrain.bench.configured import configured_run

        if options.engines:
            raise UserError(f"--engines {options.engines}: not with settings; give training.engine=... instead")
        return [configured_run(*split_settings(options.settings), options.batch)]
    engines = engines_of((options.engines or DEFAULT_ENGINE).split(","))
    networks = map(network_of, options.networks.split(","))
    batch = options.batch or DEFAULT_BATCH
    return [ScaledRun(network, engine, batch) for network in networks for engine in engines]
