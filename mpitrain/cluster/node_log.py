"""One log file per host, for launchers that forward the output of all ranks to one place, as `mpirun` does."""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping, Sequence
from pathlib import Path

_VARIABLE = "MPITRAIN_NODE_LOG"


def node_log_variable(stem: Path, hosts: Sequence[str]) -> str:
    """Return NAME=VALUE of the variable with which ranks write to STEM_nodeN.log, where N is the index in `hosts`."""
    return f"{_VARIABLE}={stem}:{','.join(host.partition('.')[0] for host in hosts)}"


def write_into_node_log(environ: MutableMapping[str, str]) -> None:
    """Redirect standard output and error to this host's log, if a job script sets one. Raises OSError."""
    path, _, names = environ.pop(_VARIABLE, "").rpartition(":")
    if not path:
        return
    hosts = names.split(",")
    host = socket.gethostname().partition(".")[0]
    node = hosts.index(host) if host in hosts else len(hosts)
    descriptor = os.open(f"{path}_node{node}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for number in (1, 2):
        os.dup2(descriptor, number)
    os.close(descriptor)
