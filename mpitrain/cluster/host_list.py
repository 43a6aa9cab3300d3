"""Slurm's compressed lists of hosts (`a[1-2,4],b07`) and of tasks per node (`2(x3),1`), and the address of a node."""

from __future__ import annotations

import math
import re
import socket
import subprocess
from collections.abc import Callable
from itertools import product

from mpitrain.errors import LaunchError

_SCONTROL_TIMEOUT_S = 10.0
MAX_HOSTS = 100_000  # more than any cluster has: a longer list is a typing error

_ITEM = re.compile(r"((?:\[[^\]]*\]|[^,])*),")  # commas in brackets belong to the item
_PIECE = re.compile(r"[A-Za-z0-9_.\-]+|\[[^\[\]]*\]")
_RANGE = re.compile(r"(?P<low>[0-9]+)(?:-(?P<high>[0-9]+))?")
_TASKS = re.compile(r"(?P<tasks>[0-9]+)(?:\(x(?P<nodes>[0-9]+)\))?")


def expand_host_list(text: str) -> list[str]:
    """Expand a Slurm host list into host names, in its order; the leftmost bracket varies slowest.

    Zero padding is kept. Raises LaunchError with the part that cannot be parsed.
    """
    hosts: list[str] = []
    for item in _ITEM.findall(f"{text.strip()},"):
        hosts += _expand_item(item.strip(), text)
        _check_length(len(hosts), text)
    return hosts


def expand_tasks_per_node(text: str) -> list[int]:
    """Expand Slurm's tasks per node, `2(x3),1` -> [2, 2, 2, 1]; raises LaunchError with a part it cannot parse."""
    counts: list[int] = []
    for item in text.strip().split(","):
        match = _TASKS.fullmatch(item.strip())
        if match is None:
            raise _unreadable("tasks per node", item, text, "`2(x3),1`")
        num_nodes = int(match["nodes"] or 1)
        _check_length(len(counts) + num_nodes, text)
        counts += [int(match["tasks"])] * num_nodes
    return counts


def _expand_item(item: str, text: str) -> list[str]:
    pieces = _PIECE.findall(item)
    if not item or "".join(pieces) != item:
        raise _unreadable("host list", item, text)
    choices = [_expand_bracket(piece[1:-1], text) if piece.startswith("[") else [piece] for piece in pieces]
    _check_length(math.prod(map(len, choices)), text)
    return ["".join(parts) for parts in product(*choices)]


def _expand_bracket(body: str, text: str) -> list[str]:
    numbers: list[str] = []
    for item in body.split(","):
        match = _RANGE.fullmatch(item.strip())
        if match is None:
            raise _unreadable("host list", f"[{body}]", text)
        low, high = match["low"], match["high"] or match["low"]
        if int(high) < int(low):
            raise _unreadable("host list", f"[{body}]", text)
        _check_length(len(numbers) + int(high) - int(low) + 1, text)
        numbers += [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
    return numbers


def _check_length(length: int, text: str) -> None:
    if length > MAX_HOSTS:
        raise LaunchError(
            f"list {text[:60]!r}: more than {MAX_HOSTS} nodes; correct the range, "
            'or pass the output of `scontrol show hostnames "$SLURM_STEP_NODELIST"` joined by commas'
        )


def _unreadable(kind: str, part: str, text: str, example: str = "`a[1-2,4],b07`") -> LaunchError:
    return LaunchError(
        f"{kind} {text!r}: cannot read {part!r}; write it like {example} "
        "(`scontrol show hostnames` and `echo $SLURM_STEP_TASKS_PER_NODE` show Slurm's values)"
    )


def node_address(node: str, ask_slurm: Callable[[str], str] | None = None) -> str:
    """Return `node` if the name resolves, otherwise its address in Slurm (NodeAddr).

    A node's name in Slurm may differ from its host name: see NodeAddr and NodeHostname in slurm.conf.
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
    """Return the output of `scontrol show node`; empty if it fails."""
    command = ["scontrol", "--oneliner", "show", "node", node]
    try:
        # Found by the job's PATH: this is the scontrol of the cluster that started this process.
        return subprocess.run(
            command, capture_output=True, text=True, timeout=_SCONTROL_TIMEOUT_S, stdin=subprocess.DEVNULL
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
