"""One message from many processes that do not know each other yet."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from mpitrain.cluster.launchers import claimed_rank

PRINT_WITHIN_S = 1.0


def say_once_before_ranks_meet(text: str, environ: Mapping[str, str]) -> None:
    """Print `text` on standard error from the process whose launcher calls it rank 0; the others wait a moment.

    No barrier can order processes that have not met. The launcher may kill rank 0 as soon as another one exits with
    an error, so the others give it the time to print.
    """
    if claimed_rank(environ) == 0:
        print(text, file=sys.stderr, flush=True)  # noqa: T201
    else:
        time.sleep(PRINT_WITHIN_S)
