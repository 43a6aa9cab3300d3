"""The fork server of a node: loads the modules that it is told, then forks a process for each rank that asks.

It never uses MPI. It lives as long as somebody is connected: it tells each rank's first process how the fork ended, and
kills the fork of one that is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mpitrain.cluster.cpu.freed_memory import keep_freed_memory
from mpitrain.cluster.place import ORIGIN
from mpitrain.comm.fork_server.likeness import difference, likeness
from mpitrain.comm.fork_server.messages import ForkRequest, receive_request, send_answer

_OWN_DESCRIPTORS_FROM = 256  # those below are the numbers that ranks bring along
_MOST_DESCRIPTORS = 1 << 16
_REQUEST_WITHIN_S = 2.0
_NAME_PROCESS, _DIE_WITH_PARENT = 15, 1  # PR_SET_NAME, PR_SET_PDEATHSIG
_FOR_RANKS_ALONE = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP,
)  # fmt: skip


@dataclass
class _Fork:
    process: int
    connection: socket.socket
    is_killed: bool = False


class ForkServer:
    """Serves the ranks of one node through `listener`, where they may be waiting already while the modules load."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        # What a launcher or nohup had it ignore, a fork ignores.
        self._handlers = {number: signal.signal(number, signal.SIG_IGN) for number in _FOR_RANKS_ALONE}
        self._forks: list[_Fork] = []
        self._problem = ""
        self._likeness: dict[str, Any] = {}

    def load(self, modules: Sequence[str]) -> None:
        """Import them; what is wrong with one is left to the ranks, which then load all of them themselves."""
        keep_freed_memory(os.environ)
        gc.disable()
        try:
            for name in modules:
                importlib.import_module(name)
            self._likeness = likeness(os.environ)
        except Exception as error:
            self._problem = f"{type(error).__name__}: {error}"
        gc.enable()
        gc.freeze()  # a collection in a fork would copy every page

    def serve(self) -> ForkRequest | None:
        """Return in each fork what was asked for, and in the server None, once nobody is connected."""
        woken, wake = (_lift(number) for number in os.pipe())
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        while True:
            ready = self._wait(woken)
            if woken in ready:
                os.read(woken, _MOST_DESCRIPTORS)
            self._reap()
            for fork in self._forks:
                if fork.connection.fileno() in ready:  # nothing is said any more: the other side has ended
                    os.kill(fork.process, signal.SIGKILL)
                    fork.is_killed = True
            if self._listener.fileno() in ready:
                request = None
                with contextlib.suppress(OSError):  # no more files or memory: the rank loads for itself
                    request = self._answer((woken, wake))
                if request is not None:
                    return request
            elif not self._forks:
                return None

    def _wait(self, woken: int) -> set[int]:
        poll = select.poll()
        alive = [fork.connection.fileno() for fork in self._forks if not fork.is_killed]
        for number in (woken, self._listener.fileno(), *alive):
            poll.register(number, select.POLLIN)
        return {number for number, _ in poll.poll(None if self._forks else 0)}

    def _reap(self) -> None:
        for fork in tuple(self._forks):
            process, status = os.waitpid(fork.process, os.WNOHANG)
            if process:
                with contextlib.suppress(OSError):
                    send_answer(fork.connection, status=status)
                fork.connection.close()
                self._forks.remove(fork)

    def _answer(self, own_pipe: tuple[int, int]) -> ForkRequest | None:
        """Fork for the next one that asks: the request in the fork, None in the server."""
        connection = _lift_socket(self._listener.accept()[0])
        connection.settimeout(_REQUEST_WITHIN_S)
        try:
            request, found = receive_request(connection)
        except (OSError, ValueError, TypeError):
            connection.close()
            return None
        descriptors = [_lift(number) for number in found]
        process, server = None, os.getpid()
        problem = self._problem or _unlike(self._likeness, request.likeness) or _occupied(request.descriptors)
        if not problem:
            try:
                process = _fork_on(request.cpus)
            except OSError as error:
                problem = str(error)
        if process == 0:
            try:
                self._forget(connection, own_pipe)
                _become(request, descriptors, server)
            except BaseException:  # never on into the server's part
                traceback.print_exc()
                os._exit(1)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _FOR_RANKS_ALONE)
            return request
        for number in descriptors:
            os.close(number)
        with contextlib.suppress(OSError):  # gone: seen by the next wait
            send_answer(connection, **({"problem": problem} if process is None else {"process": process}))
        if process is None:
            connection.close()
        else:
            self._forks.append(_Fork(process, connection))
        return None

    def _forget(self, connection: socket.socket, own_pipe: tuple[int, int]) -> None:
        """Leave to the server what is the server's: a copy here would hide its end from the ranks."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for ignored, handler in self._handlers.items():
            signal.signal(ignored, handler)
        for held in (self._listener, connection, *(fork.connection for fork in self._forks)):
            held.close()
        for number in own_pipe:
            os.close(number)


def _fork_on(cpus: Sequence[int]) -> int:
    """Fork; the fork may run on these CPUs. Raises OSError where this process may not use them, or not fork."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    # A signal that comes before the fork has its rank's handlers waits for them.
    signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_RANKS_ALONE)
    process = -1
    try:
        process = os.fork()
    finally:
        if process != 0:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _FOR_RANKS_ALONE)
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, own)
    return process


@contextlib.contextmanager
def _dying_with(parent: int) -> Iterator[None]:
    """Let the system kill this process with its parent while the block runs."""
    _end_with_parent(parent, signal.SIGKILL)
    yield
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, 0)


def _end_with_parent(parent: int, number: int) -> None:
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, number)
    if os.getppid() != parent:  # gone before that
        os._exit(1)


def _become(request: ForkRequest, descriptors: Sequence[int], server: int) -> None:
    """Take over what is the asking process's own: open files, environment, arguments, process group."""
    _end_with_parent(server, signal.SIGKILL)
    ctypes.CDLL(None).prctl(_NAME_PROCESS, f"mpitrain-{request.rank}".encode())
    for number, received in zip(request.descriptors, descriptors, strict=True):
        os.dup2(received, number, inheritable=True)
        os.close(received)
    try:
        os.setpgid(0, request.process_group)
    except PermissionError:  # of another session
        os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(request.variables)
    sys.argv[:] = request.arguments
    sys.orig_argv[:] = request.original_arguments
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # else its descriptor was closed
            stream.reconfigure(line_buffering=stream is sys.stderr or stream.isatty())  # type: ignore[union-attr]
    ORIGIN.parent, ORIGIN.begun_s = request.parent, request.begun_s


def _unlike(own: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    found = difference(own, other)
    return f"another rank of this node differs in {found}" if found else ""


def _occupied(numbers: Sequence[int]) -> str:
    """Say which of the numbers is open here already, for what a module has opened; empty where none is."""
    for number in numbers:
        is_taken = number >= _OWN_DESCRIPTORS_FROM
        if 2 < number < _OWN_DESCRIPTORS_FROM:
            with contextlib.suppress(OSError):
                os.fstat(number)
                is_taken = True
        if is_taken:
            return f"its open file {number} has a number that is taken"
    return ""


def _lift(number: int) -> int:
    lifted = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _OWN_DESCRIPTORS_FROM)
    os.close(number)
    return lifted


def _lift_socket(held: socket.socket) -> socket.socket:
    return socket.socket(fileno=_lift(held.detach()))


def main(order: Mapping[str, Any]) -> None:
    """Serve as ordered, and run the ordered entry point in each fork."""
    module, _, function = order["entry_point"].partition(":")
    try:
        is_fork = _serve(order, [*order["modules"], module])
    except OSError:  # no more files, or fewer than it needs: the ranks load for themselves
        return
    if is_fork:
        sys.exit(getattr(importlib.import_module(module), function)())


def _serve(order: Mapping[str, Any], modules: Sequence[str]) -> bool:
    """Return True in each fork, and False in the server at its end."""
    os.closerange(3, order["listener"])
    os.closerange(order["listener"] + 1, _MOST_DESCRIPTORS)
    server = ForkServer(_lift_socket(socket.socket(fileno=order["listener"])))
    # Loading may hang for ever, on a file system say: then the ranks are ended, and nobody else could end this process.
    with _dying_with(order["parent"]):
        server.load(modules)
    return server.serve() is not None
