"""How long the ranks may take to meet."""

from __future__ import annotations

import math
from collections.abc import Mapping

from mpitrain.errors import LaunchError

START_TIMEOUT_VARIABLE = "MPITRAIN_START_TIMEOUT_S"
ONE_NODE_S, SEVERAL_NODES_S = 60.0, 300.0


def start_limit_s(environ: Mapping[str, str], is_one_node: bool) -> float:
    """Return the seconds from the first rank's arrival to the end of the start.

    A variable, since a start may fail before the settings are read. Raises LaunchError for a value that is no time.
    """
    text = environ.get(START_TIMEOUT_VARIABLE, "")
    if not text:
        return ONE_NODE_S if is_one_node else SEVERAL_NODES_S
    try:
        limit_s = float(text)
    except ValueError:
        limit_s = math.nan
    if not 0 < limit_s < math.inf:
        raise LaunchError(f"{START_TIMEOUT_VARIABLE}={text}: give seconds, more than 0, such as 120")
    return limit_s
