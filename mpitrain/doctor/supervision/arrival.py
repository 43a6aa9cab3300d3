"""From the ranks' notes to a verdict: who did not arrive at a step, where it was last seen, what to look at."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpitrain.doctor.check_result import CheckResult

NAME = "all ranks arrive"
_SHOWN = 4
_SAME_PLACE = "give every rank the same environment: modules, variables, Python"


@dataclass(frozen=True)
class Waiting:
    """A rank that waits at a step: which step, how long, and the launch as it knows it."""

    rank: int
    world_size: int
    is_one_node: bool
    step: int
    title: str
    limit_s: float


def explain(waiting: Waiting, notes: Mapping[int, Mapping[str, Any]], folder: Path) -> CheckResult:
    """Name the ranks that ended, never came, or are late; where all came, the operation itself did not end."""
    failed = {rank: note["failure"] for rank, note in notes.items() if note.get("failure")}
    if failed:
        rank, text = next(iter(failed.items()))
        what, _, fix = text.partition("\nTo fix it: ")
        return _fail(f"rank {rank} on {notes[rank].get('host', '?')} could not start: {what}", fix or _SAME_PLACE)
    ended = [rank for rank, note in notes.items() if note.get("ended")]
    if ended:
        return _fail(_list(ended, notes, "ended unexpectedly at"), _fix_ended(ended[0], notes))
    absent = [rank for rank in range(waiting.world_size) if rank not in notes]
    late = [rank for rank, note in notes.items() if note.get("step", 0) < waiting.step]
    where = f"after {waiting.limit_s:g} s at '{waiting.title}' (rank {waiting.rank} on {socket.gethostname()})"
    if absent:
        return _fail(f"{where}: {_absent(absent, waiting)} in {folder}", _fix_absent(absent, waiting))
    if late:
        return _fail(f"{where}: {_list(late, notes, 'did not arrive, last seen at')}", _fix_late(late[0], notes))
    inside = [rank for rank, note in notes.items() if note.get("step", 0) == waiting.step]
    return _fail(
        f"{where}: all {waiting.world_size} ranks arrived, but the operation did not end on "
        + _list(inside, notes, "in"),
        "messages between these hosts are lost: check firewall and interface (MPICH: FI_TCP_IFACE=eth0 or "
        "MPICH_OFI_INTERFACE; Open MPI: --mca btl_tcp_if_include eth0; gloo and NCCL: GLOO_SOCKET_IFNAME=eth0 "
        "NCCL_SOCKET_IFNAME=eth0), or raise --timeout on a slow machine",
    )


def _fail(found: str, fix: str) -> CheckResult:
    return CheckResult(NAME, "fail", found, fix)


def _list(ranks: list[int], notes: Mapping[int, Mapping[str, Any]], what: str) -> str:
    words = [
        f"rank {rank} on {notes[rank].get('host', '?')} (process {notes[rank].get('pid', '?')}{_state(notes[rank])}) "
        f"{what} '{notes[rank].get('title', '?')}'"
        for rank in ranks[:_SHOWN]
    ]
    more = len(ranks) - _SHOWN
    return "; ".join(words) + (f"; and {more} more" if more > 0 else "")


def _absent(absent: list[int], waiting: Waiting) -> str:
    named = ", ".join(str(rank) for rank in absent[:_SHOWN]) + (" ..." if len(absent) > _SHOWN else "")
    host = f" on {socket.gethostname()}" if waiting.is_one_node else ""
    return f"no sign of rank {named} of {waiting.world_size}{host}: it never started the doctor, or left no note"


def _fix_absent(absent: list[int], waiting: Waiting) -> str:
    advice = f"look for the process of rank {absent[0]} (ps: state T is stopped, D waits for a disk), start again"
    if waiting.is_one_node:
        return advice
    return f"{advice}; over several hosts start in a folder that all of them share, so that each rank's note is seen"


def _fix_late(rank: int, notes: Mapping[int, Mapping[str, Any]]) -> str:
    note = notes[rank]
    pid, host = note.get("pid"), note.get("host")
    if "stopped" in _state(note):
        return f"on {host}: the process is stopped; `kill -CONT {pid}`, and find out who stopped it"
    return f"on {host}: `cat /proc/{pid}/stack` or `py-spy dump --pid {pid}` shows where rank {rank} hangs"


def _fix_ended(rank: int, notes: Mapping[int, Mapping[str, Any]]) -> str:
    return (
        f"on {notes[rank].get('host')}: look at the end of rank {rank}'s error output and at `dmesg` (out of memory?)"
    )


def _state(note: Mapping[str, Any]) -> str:
    if note.get("host") != socket.gethostname():
        return ""
    try:
        letter = Path(f"/proc/{note.get('pid')}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return ", gone"
    return {"T": ", stopped", "D": ", waits for a disk", "Z": ", gone"}.get(letter, "")
