"""All ranks fail together: one rank's error becomes every rank's, before a collective could wait for it for ever."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TypeVar

from mpitrain.comm.communicator import Communicator
from mpitrain.errors import MpitrainError

Result = TypeVar("Result")
_AGREED = "agreed_by_all_ranks"


def on_all_ranks(communicator: Communicator, action: Callable[[], Result]) -> Result:
    """Run `action` on every rank and return its result; if it fails anywhere, fail everywhere. Collective.

    `action` itself may be collective only if it fails on all ranks or on none. Raises the first failing rank's
    `MpitrainError` on all ranks, marked as agreed; any other exception is a bug and is not caught here.
    """
    result, failure = _attempt(action)
    _raise_first_failure(communicator, failure)
    return result  # type: ignore[return-value]  # without a failure it is a Result


def on_root(communicator: Communicator, action: Callable[[], Result]) -> Result:
    """Run `action` on rank 0; return its (picklable) result or raise its `MpitrainError` on every rank. Collective."""
    result, failure = _attempt(action) if communicator.rank == 0 else (None, None)
    outcome = (None, result) if failure is None else ((type(failure), str(failure)), None)
    failed, value = communicator.broadcast_object(outcome)
    if failed is not None:
        kind, message = failed
        raise mark_agreed(kind(message))
    agreed: Result = value
    return agreed


def _attempt(action: Callable[[], Result]) -> tuple[Result | None, MpitrainError | None]:
    try:
        return action(), None
    except MpitrainError as error:
        return None, error


def _raise_first_failure(communicator: Communicator, failure: MpitrainError | None) -> None:
    report = None if failure is None else (type(failure), str(failure), socket.gethostname())
    reports = communicator.all_gather_object(report)
    failed = [rank for rank, other in enumerate(reports) if other is not None]
    if not failed:
        return
    kind, message, host = reports[failed[0]]
    if len(failed) < communicator.size:
        message = f"rank {failed[0]} on {host} ({len(failed)} of {communicator.size} ranks): {message}"
    raise mark_agreed(kind(message))


def mark_agreed(error: MpitrainError) -> MpitrainError:
    """Mark an error that every rank raises at the same point, so that no rank needs to abort the others."""
    setattr(error, _AGREED, True)
    return error


def is_agreed(error: BaseException) -> bool:
    """Tell whether all ranks raise this error together."""
    return bool(getattr(error, _AGREED, False))
