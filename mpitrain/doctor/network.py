"""Collective checks: TCP between ranks, Allreduce and DDP over each backend, clocks, shared files."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpitrain.comm import Ranks
from mpitrain.comm.probes.measurements import AllReduceReading, measure_clocks, probe_all_reduce, probe_ddp_step
from mpitrain.comm.probes.probe_group import open_probe_group
from mpitrain.comm.tcp.meeting import reachable_address
from mpitrain.doctor.check_result import CheckResult
from mpitrain.doctor.files import existing_parent
from mpitrain.errors import MpitrainError

_CONNECT_LIMIT_S = 5.0
_SEEN_WITHIN_S = 10.0
_LARGEST_SKEW_S = 1.0


def check_tcp(ranks: Ranks) -> CheckResult:
    """Check that every rank can connect to a port of rank 0, at the address that gloo and NCCL use. Collective."""
    name = "TCP to rank 0"
    address, hosts = (
        "127.0.0.1" if ranks.num_nodes == 1 else reachable_address(),
        ranks.cpu.all_gather_object(ranks.host),
    )
    listener, problem = _listen(address) if ranks.is_root else (None, "")
    offered = ranks.cpu.broadcast_object((listener.getsockname() if listener else None, problem))
    if offered[0] is None:
        fix = "check that the interface is up (`ip addr`) and that the host's name resolves to it (/etc/hosts)"
        return CheckResult(name, "fail", f"rank 0 on {hosts[0]} cannot listen on {address}: {offered[1]}", fix)
    problems = ranks.cpu.all_gather_object(_connect(offered[0]))
    if listener:
        listener.close()
    failed = [rank for rank, text in enumerate(problems) if text]
    endpoint = "{}:{}".format(*offered[0])
    if failed:
        found = f"rank {failed[0]} on {hosts[failed[0]]} ({len(failed)} of {len(hosts)} ranks) cannot reach "
        found += f"rank 0 on {hosts[0]} at {endpoint}: {problems[failed[0]]}"
        fix = "open the ports between the hosts, or choose the interface that connects them: GLOO_SOCKET_IFNAME=eth0 "
        fix += "NCCL_SOCKET_IFNAME=eth0 (`ip addr` lists them), and let the host's name resolve to its address"
        return CheckResult(name, "fail", found, fix)
    if len(set(hosts)) > 1 and offered[0][0].startswith("127."):
        fix = f"let {hosts[0]} resolve to its address on the network (/etc/hosts)"
        return CheckResult(
            name, "fail", f"on rank 0 the name {hosts[0]} resolves to the loopback address {endpoint}", fix
        )
    return CheckResult(name, "pass", f"all ranks reach {endpoint}")


def _listen(address: str) -> tuple[socket.socket | None, str]:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.bind((address, 0))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        return None, str(error.strerror)
    return listener, ""


def _connect(address: tuple[str, int]) -> str:
    try:
        socket.create_connection(address, timeout=_CONNECT_LIMIT_S).close()
    except OSError as error:
        return error.strerror or f"no answer within {_CONNECT_LIMIT_S:g} s"
    return ""


def check_backend(ranks: Ranks, backend: str, limit_s: float) -> list[CheckResult]:
    """Start `backend` as training does; check and time an Allreduce, then check a DDP step. Collective."""
    name = f"Allreduce over {backend}"
    readings: tuple[AllReduceReading, str] | None
    try:
        with open_probe_group(ranks, backend, limit_s) as probe:
            readings, problem = (probe_all_reduce(probe.data, probe.device), probe_ddp_step(ranks, probe)), ""
    except (MpitrainError, RuntimeError) as error:
        readings, problem = None, str(error).splitlines()[0]
    reports = ranks.cpu.all_gather_object((ranks.host, problem, readings))
    fix = "try another compute.backend; GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME set the interface of gloo and NCCL"
    failed = [(rank, host, text) for rank, (host, text, _) in enumerate(reports) if text]
    if failed:
        rank, host, text = failed[0]
        return [CheckResult(name, "fail", f"rank {rank} on {host}: {text}", fix)]
    return [_judge_all_reduce(name, reports), _judge_ddp(backend, reports)]


def _judge_all_reduce(name: str, reports: Sequence[Any]) -> CheckResult:
    for rank, (host, _, (reading, _)) in enumerate(reports):
        if reading.wrong:
            fix = "do not train with this library: choose another compute.backend, update MPI or the driver"
            return CheckResult(name, "fail", f"rank {rank} on {host}: wrong sum, {reading.wrong}", fix)
    latency_us = max(reading.latency_us for _, _, (reading, _) in reports)
    bandwidth = min(reading.bandwidth_gb_s for _, _, (reading, _) in reports)
    return CheckResult(name, "pass", f"correct; {latency_us:.0f} us for one number, {bandwidth:.2f} GB/s for 4 MiB")


def _judge_ddp(backend: str, reports: Sequence[Any]) -> CheckResult:
    name = f"DDP step over {backend}"
    for rank, (host, _, (_, wrong)) in enumerate(reports):
        if wrong:
            fix = "do not train with distributed.strategy=ddp on this backend; choose another compute.backend"
            return CheckResult(name, "fail", f"rank {rank} on {host}: {wrong}", fix)
    return CheckResult(name, "pass", "the gradient is the ranks' mean")


def check_clocks(ranks: Ranks) -> CheckResult:
    """Compare all clocks with rank 0's. Collective."""
    readings = measure_clocks(ranks.cpu)
    hosts = ranks.cpu.all_gather_object(ranks.host)
    if len(readings) == 1:
        return CheckResult("clocks agree", "pass", "one rank")
    others = list(enumerate(readings))[1:]
    rank, worst = max(others, key=lambda item: abs(item[1].offset_s) - item[1].uncertainty_s)
    found = (
        f"rank {rank} on {hosts[rank]} is {worst.offset_s * 1e3:+z.1f} ms off rank 0, +-{worst.uncertainty_s * 1e3:.1f}"
    )
    if abs(worst.offset_s) - worst.uncertainty_s > _LARGEST_SKEW_S:
        fix = f"set the clock of {hosts[rank]} (chronyc tracking, timedatectl): times of files and logs disagree"
        return CheckResult("clocks agree", "warn", found, fix)
    return CheckResult("clocks agree", "pass", found)


def check_shared_files(ranks: Ranks, model_dir: Path) -> CheckResult:
    """Write a random text next to the run folder on rank 0 and read it on all ranks. Collective."""
    name = "run folder seen by all"
    path = existing_parent(model_dir) / f".mpitrain-doctor-{secrets.token_hex(8)}"
    path, token, problem = ranks.cpu.broadcast_object(_write_token(path) if ranks.is_root else None)
    if problem:
        return CheckResult(name, "skip", f"{path.parent}: rank 0 cannot write there ({problem})")
    seen = ranks.cpu.all_gather_object((ranks.host, _read_token(path, token)))
    if ranks.is_root:
        path.unlink(missing_ok=True)
    blind = [(rank, host) for rank, (host, is_seen) in enumerate(seen) if not is_seen]
    if blind:
        found = f"rank {blind[0][0]} on {blind[0][1]} ({len(blind)} of {len(seen)} ranks) cannot read "
        found += f"the file that rank 0 wrote in {path.parent}"
        return CheckResult(name, "fail", found, "choose an output.model_dir on a file system that all hosts share")
    return CheckResult(name, "pass", f"{path.parent}")


def _write_token(path: Path) -> tuple[Path, str, str]:
    token = secrets.token_hex(16)
    try:
        path.write_text(token, encoding="ascii")
    except OSError as error:
        return path, "", str(error.strerror)
    return path, token, ""


def _read_token(path: Path, token: str) -> bool:
    deadline_s = time.monotonic() + _SEEN_WITHIN_S
    while time.monotonic() < deadline_s:
        try:
            if path.read_text(encoding="ascii") == token:
                return True
        except OSError:
            pass
        time.sleep(0.1)  # on NFS a file written by another host appears with a delay
    return False
