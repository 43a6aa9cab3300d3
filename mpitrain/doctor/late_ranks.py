"""Report on missing ranks, from the ranks' notes: which did not arrive at a step, its last known step, and a fix."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from mpitrain.comm.agent.words import join, name_of
from mpitrain.doctor.check_result import CheckResult, render
from mpitrain.doctor.comparisons import compare_notes

NAME = "all ranks arrive"
_SAME_PLACE = "give every rank the same environment: modules, variables, Python"

Notes = Mapping[int, Mapping[str, Any]]


def report(notes: Notes, waiting: Mapping[str, Any], order: Mapping[str, Any]) -> str:
    """Return the doctor's table for the agent.

    It has the results so far, and why the rank that wrote the note `waiting` is still waiting.
    """
    results = [CheckResult(**record) for record in notes.get(0, {}).get("results", ())]
    found = [explain(waiting, notes, order["world_size"], is_one_node=order["is_one_node"]), *compare_notes(notes)]
    return render([*results, *found], order["world_size"], order["as_json"])


def explain(waiting: Mapping[str, Any], notes: Notes, world_size: int, *, is_one_node: bool) -> CheckResult:
    """Return which ranks ended, never started, or are late; if all arrived, that the operation itself did not end."""
    failed = [note for note in notes.values() if note.get("failure")]
    if failed:
        problem, _, fix = failed[0]["failure"].partition("\nTo fix it: ")
        return _fail(f"{name_of(failed[0])} could not start: {problem}", fix or _SAME_PLACE)
    ended = [note for note in notes.values() if note.get("ended")]
    if ended:
        host, rank = ended[0]["host"], ended[0]["rank"]
        fix = f"on {host}: check the end of rank {rank}'s error output, and `dmesg` (out of memory?)"
        return _fail(_list(ended, "ended unexpectedly at"), fix)
    waited = f"after {waiting['limit_s']:g} s at '{waiting['title']}' ({name_of(waiting)})"
    absent = [rank for rank in range(world_size) if rank not in notes]
    if absent:
        host = f" on {socket.gethostname()}" if is_one_node else ""
        named = f"no sign of rank {join([str(rank) for rank in absent])} of {world_size}{host}"
        return _fail(f"{waited}: {named}: not started, or no note left", _fix_absent(absent, is_one_node))
    late = [note for note in notes.values() if note["step"] < waiting["step"]]
    if late:
        return _fail(f"{waited}: {_list(late, 'did not arrive, last seen at')}", _fix_late(late[0]))
    inside = [note for note in notes.values() if note["step"] == waiting["step"]]
    problem = f"{waited}: all {world_size} ranks arrived, but the operation did not end on {_list(inside, 'in')}"
    stopped = [note for note in inside if _is_stopped(note)]
    if stopped:
        return _fail(problem, _fix_late(stopped[0]))
    return _fail(
        problem,
        "messages between these hosts are lost: check firewall and interface (MPICH: FI_TCP_IFACE=eth0 or "
        "MPICH_OFI_INTERFACE; Open MPI: --mca btl_tcp_if_include eth0; gloo and NCCL: GLOO_SOCKET_IFNAME=eth0 "
        "NCCL_SOCKET_IFNAME=eth0), or raise --timeout on a slow machine",
    )


def _fail(found: str, fix: str) -> CheckResult:
    return CheckResult(NAME, "fail", found, fix)


def _list(notes: list[Mapping[str, Any]], state: str) -> str:
    return join([f"{name_of(note)} {state} '{note['title']}'" for note in notes], "; ")


def _fix_absent(absent: list[int], is_one_node: bool) -> str:
    advice = f"look for the process of rank {absent[0]} (ps: state T is stopped, D waits for a disk), start again"
    if is_one_node:
        return advice
    return f"{advice}; on several hosts start in a folder that they all share, so that the notes of all ranks are read"


def _is_stopped(note: Mapping[str, Any]) -> bool:
    return ", stopped" in name_of(note)


def _fix_late(note: Mapping[str, Any]) -> str:
    pid, host = note["pid"], note["host"]
    if _is_stopped(note):
        return f"on {host}: the process is stopped; `kill -CONT {pid}` continues it; find out what stopped it"
    return f"on {host}: `cat /proc/{pid}/stack` or `py-spy dump --pid {pid}` shows where rank {note['rank']} hangs"
