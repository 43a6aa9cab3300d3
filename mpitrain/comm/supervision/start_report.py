"""From the ranks' notes to one line: who keeps the others from starting, where it is, what to do."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mpitrain.comm.supervision.status_folder import process_state
from mpitrain.comm.supervision.time_limit import START_TIMEOUT_VARIABLE

Note = Mapping[str, Any]
# The stages of a start, in order; from MPI_Init on, a rank that has arrived waits for the others.
IMPORTING, IMPORTING_MPI, MPI_INIT, MEETING, AGREEING = range(5)
TITLES = ("loading torch", "loading mpi4py", "starting MPI", "meeting", "agreeing on the start")
_MOST_NAMED = 4
_NETWORK = (
    "messages between their hosts are lost: check firewall and interface (MPICH: FI_TCP_IFACE=eth0; Open MPI: "
    "--mca btl_tcp_if_include eth0; gloo: GLOO_SOCKET_IFNAME=eth0), or ask `mpitrain doctor` under the same launcher"
)


@dataclass(frozen=True)
class Start:
    """The start of `world_size` ranks as far as one node knows it: its ranks' notes, and those that others share."""

    world_size: int
    is_one_node: bool
    notes: Mapping[int, Note]


def describe_waiting(start: Start, waited_s: float, limit_s: float) -> str:
    """Say who keeps the others waiting, while there is time left."""
    return (
        f"the ranks have not met after {waited_s:.0f} s: {_who(start)}; the start ends after {limit_s:.0f} s "
        f"({START_TIMEOUT_VARIABLE})"
    )


def describe_end(start: Start, limit_s: float) -> str:
    """Say who did not arrive in time, and what to do."""
    return f"the ranks did not meet within {limit_s:.0f} s: {_who(start)}; {_fix(start)}"


def describe_lost(notes: Mapping[int, Note], lost: Sequence[int]) -> str:
    """Say which ranks have ended without a word, and when."""
    named = join([f"rank {rank} on {notes[rank]['host']} (process {notes[rank]['pid']})" for rank in lost])
    first = notes[lost[0]]
    when = f" while {title_of(first)}" if first["state"] == "starting" else ""
    together = " at the same moment" if len(lost) > 1 else ""
    return (
        f"{named} ended without a word{together}{when}: killed, by hand, by its launcher or for want of memory (see "
        "dmesg), or crashed; look at the end of its own output"
    )


def describe_failed(note: Note) -> str:
    """Say why a rank could not start."""
    return f"rank {note['rank']} on {note['host']} could not start: {note['failure']}"


def title_of(note: Note) -> str:
    """Return what a rank does at its stage of the start."""
    return TITLES[note["stage"]]


def join(words: Sequence[str]) -> str:
    """Return the words as one list, the first few of them."""
    more = f" and {len(words) - _MOST_NAMED} more" if len(words) > _MOST_NAMED else ""
    return ", ".join(words[:_MOST_NAMED]) + more


def late_ranks(start: Start) -> list[int]:
    """Return the ranks that have told where they are, and keep others waiting there."""
    starting = {rank: note for rank, note in start.notes.items() if note["state"] == "starting"}
    stopped = [rank for rank, note in starting.items() if _state_of(note) in ("stopped", "gone")]
    if stopped:
        return stopped
    furthest = max((note["stage"] for note in starting.values()), default=0)
    most = max((_count(note) for note in starting.values()), default=0)
    return [
        rank
        for rank, note in starting.items()
        if note["stage"] < furthest or not note["waits"] or (furthest == AGREEING and _count(note) < most)
    ]


def _state_of(note: Note) -> str:
    return process_state(note["pid"]) if note["host"] == socket.gethostname() else ""


def _count(note: Note) -> int:
    return int(note.get("count", 0))


def _who(start: Start) -> str:
    absent = [rank for rank in range(start.world_size) if rank not in start.notes]
    late = late_ranks(start)
    if not absent and not late:
        return f"all {start.world_size} ranks are at '{_furthest_title(start)}'{_meeting_point(start)}"
    words = [_describe_late(start.notes[rank]) for rank in late[:_MOST_NAMED]]
    if absent:
        numbers = join([str(rank) for rank in absent])
        words.append(f"no sign of rank {numbers} of {start.world_size}{_host(start)}")
    return ", ".join(words) + _meeting_point(start)


def _describe_late(note: Note) -> str:
    state = _state_of(note)
    process = f"process {note['pid']}{f', {state}' if state else ''}"
    place = f" in {note['place']}" if note.get("place") else ""
    return f"rank {note['rank']} on {note['host']} ({process}) is still {title_of(note)}{place}"


def _furthest_title(start: Start) -> str:
    return title_of(max(start.notes.values(), key=lambda note: int(note["stage"])))


def _meeting_point(start: Start) -> str:
    wheres = [note["where"] for note in start.notes.values() if note.get("where")]
    return f", awaited at {wheres[0]}" if wheres else ""


def _host(start: Start) -> str:
    return f" on {socket.gethostname()}" if start.is_one_node else ""


def _fix(start: Start) -> str:
    more = f"or give it more time: {START_TIMEOUT_VARIABLE}=600, or distributed.start_timeout_s"
    late = late_ranks(start)
    if late:
        return f"see what keeps it (ps: T is stopped, D waits for a disk; `py-spy dump --pid N`), {more}"
    if len(start.notes) < start.world_size:
        return f"see whether it was started, and what its launcher or its host says, {more}"
    if max(note["stage"] for note in start.notes.values()) >= MPI_INIT:
        return _NETWORK
    return more
