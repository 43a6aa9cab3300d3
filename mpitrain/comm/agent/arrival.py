"""Registration of a rank with its node's agent, and errors before the ranks are connected, each printed once."""

from __future__ import annotations

import os
import re
import secrets
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from mpitrain.cluster import Place, read_place
from mpitrain.cluster.place import print_once_before_connection
from mpitrain.comm.agent import ONE_NODE_START_S, SEVERAL_NODES_START_S
from mpitrain.comm.agent.folder import folder_name, launch_identity, launcher_pid, open_private_folder
from mpitrain.comm.agent.processes import let_end_signal_exit, process_born
from mpitrain.comm.agent.rank_side import CollectiveLimit, Fail, NodeWatch
from mpitrain.comm.agent.shared_memory import remove_shared_memory, shared_memory_of
from mpitrain.comm.agent.words import AGREEING, IMPORTING, START_TIMEOUT_VARIABLE
from mpitrain.errors import LaunchError, MpitrainError, exit_code_of, one_line

if TYPE_CHECKING:
    from mpitrain.comm.ranks import Ranks


def begin_watch(
    environ: Mapping[str, str] = os.environ, config_path: Path | None = None, overrides: Sequence[str] = ()
) -> NodeWatch:
    """Register this rank with its node's agent; the first rank of a node starts the agent.

    Raises LaunchError if the time limit of the start is invalid.
    """
    place = read_place(environ)
    place = replace(place, is_one_node=place.is_one_node and not _meets_elsewhere(environ))
    limit_s = start_limit_s(environ, place.is_one_node)
    if place.world_size < 2 or place.problem or not Path("/proc/self/stat").exists():
        return NodeWatch()
    order = {
        "limit_s": limit_s,
        "config_path": None if config_path is None else str(config_path),
        "overrides": list(overrides),
        "launcher": find_launcher(environ),
    }
    watch = open_watch(place, launch_identity(environ), "start", order)
    watch.enter(IMPORTING)
    return watch


def open_watch(place: Place, identity: str, purpose: str, order: Mapping[str, Any]) -> NodeWatch:
    """Return this rank's connection to its node's agent. `identity` identifies the launch, the same on all ranks.

    If no private folder can be created, the watch is inactive and its `problem` has the reason.
    """
    shared = str(Path.cwd() / folder_name(identity, purpose))
    facts = {"world_size": place.world_size, "is_one_node": place.is_one_node, "shared": shared}
    try:
        folder = open_private_folder(Path(tempfile.gettempdir()), folder_name(identity, purpose, socket.gethostname()))
    except OSError as error:
        watch = NodeWatch(rank=place.rank)
        watch.problem = str(error)
        return watch
    let_end_signal_exit()
    return NodeWatch(folder, place.rank, {**facts, **order})


def new_identity() -> str:
    """Return a random identity for a launch."""
    return secrets.token_hex(16)


def start_limit_s(environ: Mapping[str, str], is_one_node: bool) -> float:
    """Return the time limit of the start in seconds: START_TIMEOUT_VARIABLE if it is set, otherwise the default.

    It is an environment variable because a start may fail before the settings are read. Raises LaunchError for an
    invalid value.
    """
    text = environ.get(START_TIMEOUT_VARIABLE, "")
    if not text:
        return ONE_NODE_START_S if is_one_node else SEVERAL_NODES_START_S
    try:
        limit_s = float(text)
    except ValueError:
        limit_s = 0.0
    if not 0 < limit_s < float("inf"):
        raise LaunchError(f"{START_TIMEOUT_VARIABLE}={text}: give seconds, more than 0, for example 120")
    return limit_s


@contextmanager
def watching_start(
    environ: Mapping[str, str] = os.environ, config_path: Path | None = None, overrides: Sequence[str] = ()
) -> Iterator[NodeWatch]:
    """Register this rank with its node's agent, then run the block, which imports packages.

    Parameters
    ----------
    environ : mapping of str to str
        Environment variables with those of the launcher; default: the process's.
    config_path : Path, optional
        File of settings, from which the agent reads `distributed.start_timeout_s` if the start takes long.
    overrides : sequence of str
        Settings as `key=value`, which take precedence over the file.

    Yields
    ------
    NodeWatch
        The registration, for `run_on_all_ranks`. All its methods do nothing if the launcher's variables are wrong or
        contain fewer than two ranks, or the system has no /proc.

    Raises
    ------
    SystemExit
        With exit code 3: MPITRAIN_START_TIMEOUT_S is not a finite number above 0. The error has been printed.
    MpitrainError
        Raised by the block, and re-raised unchanged: the agent is not notified, so that the caller must report it.

    Notes
    -----
    Not collective: no rank waits for another one. Any other error in the block is printed and ends this process
    immediately (os._exit); the agent then ends the other ranks. ImportError and OSError are printed as a LaunchError,
    with exit code 3; otherwise the exit code is 130 for KeyboardInterrupt and 1 for all others, including SystemExit.
    """
    try:
        watch = begin_watch(environ, config_path, overrides)
    except LaunchError as error:
        end_start(NodeWatch(), error, environ)
        raise SystemExit(error.exit_code) from None
    with reporting_failures(watch, environ):
        yield watch


@contextmanager
def reporting_failures(watch: NodeWatch, environ: Mapping[str, str]) -> Iterator[None]:
    """On an error in the block, notify the agent and end this process; an MpitrainError is re-raised instead."""
    try:
        yield
    except MpitrainError:
        raise
    except (ImportError, OSError) as error:
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        end_start(watch, LaunchError(f"{text}; see whether this host has the same Python as the others"), environ)
        sys.stdout.flush()
        os._exit(LaunchError.exit_code)  # a normal exit would block in MPI_Finalize
    except BaseException as error:
        fail_in_start(watch, error)


def fail_in_start(watch: NodeWatch, error: BaseException) -> NoReturn:
    """Report an error of this rank before the ranks are connected, and end this process; the agent ends the others."""
    watch.fail(exit_code_of(error))
    if watch.claim():
        location = f"rank {watch.rank} on {socket.gethostname()}: " if watch.is_active else ""
        details = "" if isinstance(error, SystemExit | KeyboardInterrupt) else "\n" + traceback.format_exc()
        text = "interrupted" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
        print(f"mpitrain: error: {location}{one_line(text)}{details}", file=sys.stderr)  # noqa: T201
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code_of(error))


def end_start(watch: NodeWatch, error: MpitrainError, environ: Mapping[str, str]) -> None:
    """Report once why the ranks cannot start: rank 0 prints the error if it fails too, otherwise the agent does."""
    watch.refuse(str(error), error.exit_code)
    text = f"mpitrain: error: {error}"
    if not watch.is_active:
        print_once_before_connection(text, environ)
    elif watch.rank != 0:
        watch.wait_until_spoken()
    elif watch.claim():
        print(text, file=sys.stderr, flush=True)  # noqa: T201


def remove_own_shared_memory() -> None:
    """Remove this process's MPI shared-memory files, which would remain if it were killed. For a single rank only."""
    remove_shared_memory(shared_memory_of(os.getpid()))


def watch_all(ranks: Ranks) -> None:
    """Register the ranks if `begin_watch` found no launcher variables; append a notice if it fails. Collective."""
    if ranks.world_size == 1:
        return
    if not any(ranks.gather_object(ranks.watch.is_active or bool(ranks.watch.problem))):
        place = Place(ranks.rank, ranks.world_size, True, ranks.num_nodes == 1)
        order = {"limit_s": start_limit_s(os.environ, place.is_one_node)}
        ranks.watch = open_watch(place, ranks.broadcast_object(new_identity()), "start", order)
        ranks.watch.enter(AGREEING)
        ranks.watch.follow(ranks.cpu.notes)
    problem = next(filter(None, ranks.gather_object(ranks.watch.problem)), "")
    if problem:
        ranks.notices.append(
            f"ranks that exit or hang are not reported ({problem}): set TMPDIR to a folder that only you can write to"
        )


def limit_collectives(ranks: Ranks, timeout_s: float, fail: Fail) -> None:
    """Abort the job, with an error that names the missing rank, if a collective exceeds `timeout_s`. Collective."""
    if ranks.world_size == 1:
        return
    first = ranks.broadcast_object(ranks.watch.rank)
    group = {"group": first, "node": ranks.node_rank, "num_of_node": ranks.local_world_size}
    ranks.watch.follow(ranks.cpu.notes, CollectiveLimit(timeout_s, ranks.world_size, group, fail))


def find_launcher(environ: Mapping[str, str]) -> list[Any] | None:
    """Return [pid, start time] of the launcher; None if RANK and MASTER_ADDR are set: a shell may start ranks again."""
    if launch_identity(environ).startswith("torch"):
        return None
    pid = launcher_pid(environ)
    return [pid, process_born(pid)]


def _meets_elsewhere(environ: Mapping[str, str]) -> bool:
    """Return whether ranks started by hand (RANK, no LOCAL_WORLD_SIZE) may be on several hosts, by MASTER_ADDR."""
    if environ.get("LOCAL_WORLD_SIZE") or not environ.get("RANK"):
        return False
    return not re.match(r"127\.|localhost$|::1$|$", environ.get("MASTER_ADDR", ""))
