"""A rank's side: ask the node's fork server for a process that has everything loaded, and stand in for it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from mpitrain.cluster.launchers import read_claims, without_inherited
from mpitrain.cluster.place import ORIGIN
from mpitrain.comm.fork_server.likeness import likeness
from mpitrain.comm.fork_server.messages import (
    MOST_DESCRIPTORS,
    ForkRequest,
    open_address,
    receive_answer,
    send_request,
)
from mpitrain.comm.supervision.node_watch import NodeWatch
from mpitrain.comm.supervision.status_folder import launcher_pid, process_state, wait_until

SWITCH = "MPITRAIN_FORK_SERVER"
_OFF = ("0", "no", "off", "false")
# Two load in less time at once, each on a core, than one does and forks; with the switch on, two are forked too.
_FEWEST_RANKS = 3
_OPENMP_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_START = (
    "import json, sys; order = json.load(sys.stdin); sys.path[:] = order['path']; "
    "from mpitrain.comm.fork_server.server import main; main(order)"
)
_FORWARDED = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
    signal.SIGTSTP, signal.SIGCONT, signal.SIGXCPU,
)  # fmt: skip
_STOPS_WITHIN_S = 0.3
_FROM_TERMINAL = 0x80  # SI_KERNEL: sent to the whole process group


def run_in_fork(
    watch: NodeWatch,
    modules: Sequence[str],
    entry_point: str,
    before_standing_in: Callable[[], None] = lambda: None,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Let a fork of a process that has loaded `modules` run `entry_point`, and end this process as that one ends.

    Returns where that is not to be had, or this is the fork: then the caller loads what it needs and goes on. Not
    collective: each rank of a node may do the one or the other. `entry_point` is `module:function`, which takes the
    process's own arguments; `modules` must be the same on all ranks.
    """
    if not is_wanted(watch, environ):
        return
    try:
        request = _request(watch.rank, environ)
        connection = _connect(watch, modules, entry_point)
        send_request(connection, request)
    except OSError as error:
        ORIGIN.refusal = str(error)
        return
    answer = receive_answer(connection)
    if "process" not in answer:
        connection.close()
        ORIGIN.refusal = answer.get("problem", "the fork server has ended")
        return
    before_standing_in()
    _stand_in(connection, answer["process"])


def is_wanted(watch: NodeWatch, environ: Mapping[str, str]) -> bool:
    """Tell whether this is a plain command of a rank that shares its node: under a debugger, say, it stays itself."""
    switch = environ.get(SWITCH, "").lower()
    if ORIGIN.parent is not None or not watch.is_active or switch in _OFF:
        return False
    fewest = 2 if switch else _FEWEST_RANKS
    claims = without_inherited(read_claims(environ), environ)
    is_shared = all((claim.local_world_size or claim.world_size or fewest) >= fewest for claim in claims)
    is_observed = "LD_PRELOAD" in environ or sys.gettrace() is not None or sys.getprofile() is not None
    # OpenMP's library takes the cores for its threads when it is loaded.
    is_bound = any(environ.get(name, "false").lower() != "false" for name in _OPENMP_BINDING)
    is_plain = not is_observed and not is_bound and _is_own_command()
    return is_shared and is_plain and os.getppid() == launcher_pid(environ)


def _is_own_command() -> bool:
    """Tell `python -m mpitrain ...` and the script `mpitrain` from a program that calls the package."""
    words = sys.orig_argv[1:]
    if words[:1] == ["-u"]:  # torchrun's
        words = words[1:]
    return words[:2] == ["-m", "mpitrain"] or (bool(words) and Path(words[0]).name == "mpitrain")


def _request(rank: int, environ: Mapping[str, str]) -> ForkRequest:
    """Describe this process. Raises OSError, also where it has more open files than one message takes."""
    descriptors = [0, 1, 2]
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that read the folder
            if int(name) > 2 and os.get_inheritable(int(name)):
                descriptors.append(int(name))
    if len(descriptors) > MOST_DESCRIPTORS:
        raise OSError(f"it has {len(descriptors)} open files from its launcher")
    return ForkRequest(
        rank=rank,
        parent=os.getppid(),
        process_group=os.getpgrp(),
        arguments=sys.argv,
        original_arguments=sys.orig_argv,
        likeness=likeness(environ),
        variables=dict(environ),
        cpus=sorted(os.sched_getaffinity(0)),
        descriptors=descriptors,
        begun_s=time.monotonic(),
    )


def _connect(watch: NodeWatch, modules: Sequence[str], entry_point: str) -> socket.socket:
    """Return a connection to the node's fork server, which the first to come starts. Raises OSError."""
    folder, address = open_address(watch.folder)
    lock = os.open("fork-server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            _start_server(address, {"modules": list(modules), "entry_point": entry_point})
            connection.connect(address)
        return connection
    finally:
        os.close(lock)
        os.close(folder)


def _start_server(address: str, order: Mapping[str, object]) -> None:
    with contextlib.suppress(FileNotFoundError):  # that of a launch of the same name, which was killed
        os.unlink(address)
    read_end, write_end = os.pipe()
    null = os.open(os.devnull, os.O_WRONLY)
    flags = ["-u"] if sys.orig_argv[1:2] == ["-u"] else []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        listener.listen(socket.SOMAXCONN)
        listener.set_inheritable(True)
        try:
            # In a group of its own: launchers kill the ranks' process groups. In the ranks' session, so that a fork can
            # enter its rank's group, and the terminal knows it. The command's words are for those who look at `ps`.
            os.posix_spawn(
                sys.executable, [sys.executable, *flags, "-c", _START, "mpitrain", *sys.argv[1:]], os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, read_end, 0), (os.POSIX_SPAWN_DUP2, null, 1)], setpgroup=0,
            )  # fmt: skip
            own = {"path": sys.path, "listener": listener.fileno(), "parent": os.getpid()}
            os.write(write_end, json.dumps({**order, **own}).encode())
        finally:
            for number in (read_end, write_end, null):
                os.close(number)


def _stand_in(connection: socket.socket, process: int) -> NoReturn:
    """Forward signals to the fork, and end as it ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    while True:
        received = signal.sigwaitinfo(_FORWARDED)
        with contextlib.suppress(ProcessLookupError):
            if not (received.si_code == _FROM_TERMINAL and os.getpgid(process) == os.getpgrp()):
                os.kill(process, received.si_signo)
        if received.si_signo == signal.SIGTSTP and _stops(process):
            os.kill(os.getpid(), signal.SIGSTOP)  # a shell waits for it


def _stops(process: int) -> bool:
    """Tell whether the process has stopped, or does in a moment: it need not, in a group that no shell watches."""
    return wait_until(lambda: process_state(process) == "stopped", _STOPS_WITHIN_S)


def _end_with(connection: socket.socket) -> NoReturn:
    """Wait for the fork's end; end by the same signal or with the same exit code."""
    # Without an answer the server was killed, and its forks with it.
    status = receive_answer(connection).get("status", int(signal.SIGKILL))
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the fork has left its own
        number = os.WTERMSIG(status)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        signal.pthread_kill(threading.get_ident(), number)  # to this thread: the other one waits for signals to forward
        os._exit(128 + number)  # one that this process ignores
    os._exit(os.WEXITSTATUS(status))
