"""Which address a Slurm node is reached at: its name where that resolves, else what Slurm itself uses."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Callable

_SCONTROL_TIMEOUT_S = 10.0


def node_address(node: str, ask_slurm: Callable[[str], str] | None = None) -> str:
    """Return `node`, or the address that Slurm reaches it at (NodeAddr) where the name does not resolve.

    A node's name in Slurm need not be a host name: NodeAddr and NodeHostname may differ from it.
    """
    if _resolves(node):
        return node
    found = re.search(r"\bNodeAddr=(\S+)", (ask_slurm or _show_node)(node))
    return found[1] if found else node


def _resolves(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        return False


def _show_node(node: str) -> str:
    """Slurm's own words about a node; nothing where it does not answer."""
    command = ["scontrol", "--oneliner", "show", "node", node]
    try:
        # Slurm's own setting of the PATH: the command is the one of the cluster that started this process.
        return subprocess.run(
            command, capture_output=True, text=True, timeout=_SCONTROL_TIMEOUT_S, stdin=subprocess.DEVNULL
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
