"""What a rank's first process and the fork server say to each other: JSON over a socket, with open files."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_LENGTH = struct.Struct("!Q")
MOST_DESCRIPTORS = 200  # Linux takes 253 in one message
_SOCKET = "fork-server"


@dataclass(frozen=True)
class ForkRequest:
    """The process that asks to be forked: its command, what it must have in common, and what is its own.

    `parent` is the process's own, `descriptors` are the numbers of its open files, and `begun_s` is when it began to
    wait, on the system's monotonic clock.
    """

    rank: int
    parent: int
    process_group: int
    arguments: list[str]
    original_arguments: list[str]
    likeness: dict[str, Any]
    variables: dict[str, str]
    cpus: list[int]
    descriptors: list[int]
    begun_s: float


def send_request(connection: socket.socket, request: ForkRequest) -> None:
    """Send it with its open files. Raises OSError."""
    content = json.dumps(asdict(request)).encode()
    socket.send_fds(connection, [_LENGTH.pack(len(content))], request.descriptors)
    connection.sendall(content)


def receive_request(connection: socket.socket) -> tuple[ForkRequest, list[int]]:
    """Return a request and the descriptors that its open files have here. Raises OSError, also for half a request."""
    head, descriptors, flags, _ = socket.recv_fds(connection, _LENGTH.size, MOST_DESCRIPTORS)
    try:
        if len(head) < _LENGTH.size or flags & socket.MSG_CTRUNC:
            raise ConnectionError("half a request")
        (length,) = _LENGTH.unpack(head)
        content = b""
        while len(content) < length:
            more = connection.recv(length - len(content))
            if not more:
                raise ConnectionError("half a request")
            content += more
        request = ForkRequest(**json.loads(content))
    except BaseException:
        for number in descriptors:
            os.close(number)
        raise
    return request, descriptors


def send_answer(connection: socket.socket, **answer: Any) -> None:
    """Send one line. Raises OSError."""
    connection.sendall(json.dumps(answer).encode() + b"\n")


def receive_answer(connection: socket.socket) -> dict[str, Any]:
    """Return the next line; empty where the other side is gone."""
    line = b""
    while not line.endswith(b"\n"):
        try:
            letter = connection.recv(1)
        except ConnectionResetError:
            letter = b""
        if not letter:
            return {}
        line += letter
    answer: dict[str, Any] = json.loads(line)
    return answer


def open_address(folder: Path) -> tuple[int, str]:
    """Return the open folder and the socket's address in it: a path may be longer than an address.

    Raises OSError, also where the folder is not this user's alone: a request holds all that the process knows.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    found = os.fstat(descriptor)
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        os.close(descriptor)
        raise PermissionError(f"{folder} is not this user's own folder")
    return descriptor, f"/proc/self/fd/{descriptor}/{_SOCKET}"
