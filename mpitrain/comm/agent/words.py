"""Messages from the ranks' notes: one line with the rank for which the others wait, and advice."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mpitrain.comm.agent import BEAT_S, BEATS_OF_SILENCE, MEMORY_S
from mpitrain.comm.agent.processes import process_state

START_TIMEOUT_VARIABLE = "MPITRAIN_START_TIMEOUT_S"
# The stages of a start, in order; from MPI_INIT on, a rank waits for the others.
IMPORTING, IMPORTING_MPI, MPI_INIT, MEETING, AGREEING = range(5)
TITLES = ("loading its packages", "loading mpi4py", "starting MPI", "connecting", "agreeing on the start")
_MOST_NAMED = 4
_NETWORK = (
    "messages between their hosts are lost: check firewall and interface (MPICH: FI_TCP_IFACE=eth0; Open MPI: "
    "--mca btl_tcp_if_include eth0; gloo: GLOO_SOCKET_IFNAME=eth0), or run `mpitrain doctor` under the same launcher"
)

Note = Mapping[str, Any]
Notes = Mapping[int, Note]


@dataclass(frozen=True)
class Start:
    """State of the start of `world_size` ranks: the notes of this node's ranks, and those shared by other nodes."""

    world_size: int
    is_one_node: bool
    notes: Notes


def name_of(note: Note) -> str:
    """Return rank, host and process for a message, with the state of a process that cannot run."""
    state = process_state(note["pid"]) if note["host"] == socket.gethostname() else ""
    return f"rank {note['rank']} on {note['host']} (process {note['pid']}{f', {state}' if state else ''})"


def join(texts: Sequence[str], separator: str = ", ") -> str:
    """Join the first few texts, followed by the number of the remaining ones."""
    more = f" and {len(texts) - _MOST_NAMED} more" if len(texts) > _MOST_NAMED else ""
    return separator.join(texts[:_MOST_NAMED]) + more


# --- a start ---------------------------------------------------------------------------------------------------------


def describe_waiting(start: Start, waited_s: float, limit_s: float) -> str:
    """Return a notice with the ranks for which the others wait, before the time limit."""
    return (
        f"the ranks have not connected after {waited_s:.0f} s: {_late_in(start)}; the start is aborted after "
        f"{limit_s:.0f} s ({START_TIMEOUT_VARIABLE})"
    )


def describe_end(start: Start, limit_s: float) -> str:
    """Return an error message with the ranks that did not arrive in time, and advice."""
    return f"the ranks did not connect within {limit_s:.0f} s: {_late_in(start)}; {_fix_start(start)}"


def describe_lost(notes: Notes, lost: Sequence[int]) -> str:
    """Return an error message with the ranks that exited without an error, and the stage of the first of them."""
    named = join([f"rank {rank} on {notes[rank]['host']} (process {notes[rank]['pid']})" for rank in lost])
    first = notes[lost[0]]
    when = f" while {TITLES[first['stage']]}" if first["state"] == "starting" else ""
    together = " at the same moment" if len(lost) > 1 else ""
    file = next((notes[rank]["file"] for rank in lost if notes[rank].get("file")), "")
    if file:
        return (
            f"{named} exited without an error message{together} while opening {file}: the library that reads it crashed"
            ", or the rank was killed; see whether `ncdump -h` or `h5dump -H` opens it; if not, write or copy it again"
        )
    return (
        f"{named} exited without an error message{together}{when}: killed by hand, by its launcher or for lack of "
        "memory (see dmesg), or crashed; see the end of its output"
    )


def late_in_start(start: Start) -> list[int]:
    """Return the ranks that have a note and for which other ranks wait."""
    starting = {rank: note for rank, note in start.notes.items() if note["state"] == "starting"}
    stopped = [rank for rank, note in starting.items() if name_of(note).endswith((", stopped)", ", gone)"))]
    if stopped:
        return stopped
    furthest = max((note["stage"] for note in starting.values()), default=0)
    most = max((_count(note) for note in starting.values()), default=0)
    return [
        rank
        for rank, note in starting.items()
        if note["stage"] < furthest or not note["waits"] or (furthest == AGREEING and _count(note) < most)
    ]


def _count(note: Note) -> int:
    return int(note.get("count", 0))


def _late_in(start: Start) -> str:
    absent = [rank for rank in range(start.world_size) if rank not in start.notes]
    addresses = [note["where"] for note in start.notes.values() if note.get("where")]
    expected_at = f", expected at {addresses[0]}" if addresses else ""
    texts = [_busy_in_start(start.notes[rank]) for rank in late_in_start(start)]
    if absent:
        host = f" on {socket.gethostname()}" if start.is_one_node else ""
        texts.append(f"no sign of rank {join([str(rank) for rank in absent])} of {start.world_size}{host}")
    if not texts:
        texts = [f"all {start.world_size} ranks are at '{TITLES[_furthest(start)]}'"]
    return join(texts) + expected_at


def _busy_in_start(note: Note) -> str:
    place = f" in {note['place']}" if note.get("place") else ""
    return f"{name_of(note)} is still {_opening(note) or TITLES[note['stage']]}{place}"


def _furthest(start: Start) -> int:
    return max(int(note["stage"]) for note in start.notes.values())


def _fix_start(start: Start) -> str:
    more = f"or allow more time: {START_TIMEOUT_VARIABLE}=600, or distributed.start_timeout_s"
    if late_in_start(start):
        return f"see what blocks it (ps: T is stopped, D waits for a disk; `py-spy dump --pid N`), {more}"
    if len(start.notes) < start.world_size:
        return f"see whether it was started, and the messages of its launcher and host, {more}"
    return _NETWORK if _furthest(start) >= MPI_INIT else more


# --- a collective ----------------------------------------------------------------------------------------------------


def describe_stall(own_rank: int, notes: Notes, num_ranks: int) -> str:
    """Return an error message with the ranks for which `own_rank` waits in a collective, their position, and advice.

    These are the ranks that are silent or outside a collective. If all ranks wait in a collective, they wait in
    different ones, or the network does not deliver messages.
    """
    own = notes[own_rank]
    waited = f"waited {own['waited_s']:.0f} s in {_collective_of(own)}"
    # A failed rank is not a cause: its own time limit may have expired a moment earlier.
    others = [note for note in notes.values() if note.get("state") != "failed"]
    late = [note for note in others if is_silent(note) or not note["waits"]]
    if late:
        return f"{waited} for {join([_describe_late(note, own) for note in late], ', and ')}; {_fix_stall(late)}"
    if len(notes) < num_ranks:
        return (
            f"{waited} for ranks of other nodes ({num_ranks - len(notes)} have no note here): start in a folder that "
            "all nodes share, so that they can be named"
        )
    odd = _odd_ones(list(notes.values()))
    if odd:
        elsewhere = [f"{name_of(note)} waits in {_collective_of(note)}" for note in odd]
        return f"{waited}, but {join(elsewhere, ', and ')}: some code runs a collective on some of the ranks only"
    return f"{waited}, in which all {num_ranks} ranks are: the network between their hosts does not deliver messages"


def describe_damage(own_rank: int, notes: Notes) -> str:
    """Return an error message if the node's shared memory must be damaged; empty if a rank may still arrive."""
    own = notes[own_rank]
    of_node = [note for note in notes.values() if note["node"] == own["node"] and not is_silent(note)]
    (begun, left), waited = own["meetings"], f"waited {own['waited_s']:.0f} s in {_collective_of(own)}"
    damage = (
        "so the shared memory is damaged (a flipped bit?); continue with --resume, and test the memory of this host"
    )
    if begun == left:
        return ""
    beyond = [note for note in of_node if note["meetings"][1] >= begun]
    if beyond:
        return (
            f"{waited} for {name_of(beyond[0])}, which has left it: exchange {begun} of this node's ranks in their "
            f"shared memory has ended on one rank and not on the other, {damage}"
        )
    is_stuck = [note["meetings"][0] > note["meetings"][1] and note["waited_s"] >= MEMORY_S / 2 for note in of_node]
    if len(of_node) == own["num_of_node"] and all(is_stuck):
        named = join([name_of(note) for note in of_node if note["rank"] != own_rank])
        return f"{waited} for {named}, which waits in the shared memory of this node too, {damage}"
    return ""


def render_positions(notes: Notes) -> str:
    """Return one line per rank: its position, and for how long it has been silent."""
    lines = []
    for note in notes.values():
        silent = f", no answer for {note['silent_s']:.0f} s" if is_silent(note) else ""
        where = f"collective {note['count']}, step {note['step']}, {_whereabouts(note)}"
        lines.append(f"rank {note['rank']} on {note['host']}: {where}{silent}")
    return "\n".join(lines)


def is_silent(note: Note) -> bool:
    """Return whether a running rank has not renewed its note for BEATS_OF_SILENCE intervals."""
    return bool(note["silent_s"] > BEATS_OF_SILENCE * note.get("beat_s", BEAT_S))


def _collective_of(note: Note) -> str:
    return f"{note['collective']} (collective {note['count']}, step {note['step']})"


def _describe_late(note: Note, own: Note) -> str:
    if not is_silent(note):
        return f"{name_of(note)}, which is {_whereabouts(note)} at step {note['step']}"
    # It took part in the collectives that this rank has completed, so it has reached this rank's step at least.
    step = max(note["step"], own["step"])
    where = f", {_whereabouts(note)}" if note["step"] == step else ""
    return f"{name_of(note)}, which has not answered for {note['silent_s']:.0f} s, last seen at step {step}{where}"


def _whereabouts(note: Note) -> str:
    if note["waits"]:
        return f"in {note['collective']}"
    place = _opening(note) or (f"in {note['place']}" if note["place"] else "")
    return f"busy {place}".rstrip()


def _opening(note: Note) -> str:
    return f"opening {note['file']}" if note.get("file") else ""


def _fix_stall(late: Sequence[Note]) -> str:
    if any(is_silent(note) for note in late):
        return "see whether its process is stopped or swapped out, or its host unreachable"
    return "raise distributed.timeout_s if this is expected to take so long"


def _odd_ones(notes: Sequence[Note]) -> list[Note]:
    """Return the notes of ranks that wait in a different collective, or a different call of it, than most ranks."""
    names = Counter(note["collective"] for note in notes)
    field = "collective" if len(names) > 1 else "count"
    usual = Counter(note[field] for note in notes).most_common(1)[0][0]
    return [note for note in notes if note[field] != usual]
