"""Collective error handling: one rank's error is raised on all ranks, so that no rank deadlocks in a collective."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, TypeVar

from mpitrain.comm.communicator import Communicator
from mpitrain.errors import MpitrainError

Result = TypeVar("Result")
Other = TypeVar("Other")
_Outcome = tuple[tuple[type[MpitrainError], str] | None, Any]  # the failure, the result
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
    agreed: Result = _result_of(communicator.broadcast_object(_outcome(action) if communicator.rank == 0 else None))
    return agreed


def on_two_ranks(
    communicator: Communicator, is_second: bool, first: Callable[[], Result], second: Callable[[], Other]
) -> tuple[Result, Other]:
    """Run `first` on rank 0 and, at the same time, `second` on the rank where `is_second` is True. Collective.

    `is_second` must be True on one rank at most. If it is True on no rank other than 0, rank 0 runs `second` after
    `first`. Returns both (picklable) results on every rank. An `MpitrainError` of either is raised on all ranks; if
    both fail, that of `first`.
    """
    action: Callable[[], Any] | None = first if communicator.rank == 0 else second if is_second else None
    root_outcome, *outcomes = communicator.all_gather_object(None if action is None else _outcome(action))
    result: Result = _result_of(root_outcome)
    outcome = next((one for one in outcomes if one is not None), None)
    return result, on_root(communicator, second) if outcome is None else _result_of(outcome)


def _outcome(action: Callable[[], Any]) -> _Outcome:
    """Return the result of `action`, or the class and message of its `MpitrainError`, in a form that can be sent."""
    result, failure = _attempt(action)
    return (None, result) if failure is None else ((type(failure), str(failure)), None)


def _result_of(outcome: _Outcome) -> Any:
    failure, value = outcome
    if failure is not None:
        kind, message = failure
        raise mark_agreed(kind(*message.split("\n")))
    return value


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
    raise mark_agreed(kind(*message.split("\n")))


def mark_agreed(error: MpitrainError) -> MpitrainError:
    """Mark an error that every rank raises at the same point, so that no rank calls MPI_Abort.

    Parameters
    ----------
    error : MpitrainError
        Error whose class and condition are the same on all ranks, for example because it follows from a gathered value.

    Returns
    -------
    MpitrainError
        The same object, for `raise mark_agreed(...)`.

    Notes
    -----
    Not collective, and not checked: if only some ranks raise the error, the ranks block in different collectives until
    the time limit. `run_on_all_ranks` prints a marked error once, on the root, and returns its exit code on all ranks.
    """
    setattr(error, _AGREED, True)
    return error


def is_agreed(error: BaseException) -> bool:
    """Return whether all ranks raise this error together."""
    return bool(getattr(error, _AGREED, False))
