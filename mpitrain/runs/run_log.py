"""What a run writes into its ranks' logs besides epochs and steps: notices, facts of the launch, how it ended."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from mpitrain.comm.ranks import Ranks
from mpitrain.errors import MpitrainError, StoppedError
from mpitrain.runs.reproduction.facts import machine_facts, package_versions, rank_facts


def tell(ranks: Ranks, logger: logging.Logger, notices: Iterable[str]) -> None:
    """Print notices once, and keep them in the root's log. Not collective."""
    for line in notices:
        ranks.say(f"note: {line}", error=True)
        if ranks.is_root:
            logger.warning("%s", line)


def log_start(logger: logging.Logger, ranks: Ranks) -> None:
    """Log who this rank is and, at debug, what it runs on and how long each part of the start took."""
    where = f"rank {ranks.rank} of {ranks.world_size}, device {ranks.device}"
    logger.info("%s, torch %s, %d threads", where, torch.__version__, ranks.num_threads)
    if not logger.isEnabledFor(logging.DEBUG):
        return
    facts = {**rank_facts(ranks, os.environ), **machine_facts(os.environ)}
    for name, value in facts.items():
        logger.debug("%s: %s", name, value or "-")
    logger.debug("versions: %s", ", ".join(f"{name} {version or '-'}" for name, version in package_versions().items()))
    for what, seconds in ranks.starting.times:
        logger.debug("start: %.3f s %s", seconds, what)


@contextmanager
def told_errors(logger: logging.Logger) -> Iterator[None]:
    """Log the error that ends the block; what ends all ranks is in each rank's log then."""
    try:
        yield
    except StoppedError as error:
        logger.warning("%s", error)
        raise
    except MpitrainError as error:
        logger.error("%s", error)
        raise
