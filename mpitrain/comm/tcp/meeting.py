"""The rendezvous of torch.distributed: on loopback on one node, otherwise at one address, protected by a secret."""

from __future__ import annotations

import datetime
import errno
import os
import secrets
import socket

import torch
import torch.distributed as dist

from mpitrain.comm.communicator import Communicator
from mpitrain.comm.tcp.sealed_store import SealedStore
from mpitrain.errors import LaunchError

SECRET_VARIABLE = "MPITRAIN_SECRET"  # noqa: S105  (the name of the variable)


def open_store_over(
    communicator: Communicator, timeout: datetime.timedelta, is_one_host: bool, *, is_sealed: bool = True
) -> dist.Store:
    """Return a store that all ranks share: rank 0 binds a free port and broadcasts it. Collective.

    If `is_sealed`, values are sealed by a secret sent over `communicator`; not for NCCL, whose threads read the store.
    """
    listener = None
    if communicator.rank == 0:
        listener = _listen("127.0.0.1" if is_one_host else reachable_address(), 0)  # at a free port
    own = (*listener.getsockname()[:2], secrets.token_bytes(32)) if listener else None
    address, port, secret = communicator.broadcast_object(own)
    store = _tcp_store(address, port, communicator.size, listener, timeout, waits=False)
    wait_until_all_reach(store, communicator, "opened")
    return SealedStore(store, secret) if is_sealed else store


def wait_until_all_reach(store: dist.Store, communicator: Communicator, moment: str) -> None:
    """Wait until all ranks have reached `moment` and no message between them is pending. Collective.

    An MPI library may make progress only inside MPI calls: a rank that blocks in the store, as torch does next, could
    deadlock with ranks that still wait for its message.
    """
    communicator.barrier()
    key = f"mpitrain/{moment}"
    store.add(key, 1)
    while store.add(key, 0) < communicator.size:
        communicator.make_progress()


def open_store_at(
    meeting_point: tuple[str, int], rank: int, world_size: int, is_served: bool, timeout: datetime.timedelta
) -> dist.Store:
    """Return the store at a given rendezvous address: rank 0 serves it, unless the launcher does. Collective.

    Rank 0 listens at that address only. Raises RuntimeError (torch's) or LaunchError if the ranks do not connect.
    """
    host, port = meeting_point[0] if is_served else address_to_meet(meeting_point[0]), meeting_point[1]
    listener = _listen_at(host, port) if rank == 0 and not is_served else None
    store = _tcp_store(host, port, world_size, listener, timeout, waits=True)
    secret = os.environ.get(SECRET_VARIABLE, "")
    # NCCL's threads read the store: with a sealed store they would have to wait for the GIL.
    return SealedStore(store, secret.encode()) if secret and not torch.cuda.is_available() else store


def address_to_meet(host: str) -> str:
    """Return the address at which ranks connect to `host`, rank 0's; not loopback if other hosts must reach it."""
    if is_loopback(host):
        return host
    try:
        address = socket.gethostbyname(host)
    except OSError:  # torch reports the name that it cannot resolve
        return host
    return reachable_address() if address.startswith("127.") else host


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is a loopback address."""
    return host in ("localhost", "::1") or host.startswith("127.")


def _tcp_store(
    address: str, port: int, world_size: int, listener: socket.socket | None, timeout: datetime.timedelta, waits: bool
) -> dist.Store:
    """Return a store; this rank serves it if it has a `listener`."""
    return dist.TCPStore(
        address,
        port,
        world_size=world_size,
        is_master=listener is not None,
        timeout=timeout,
        wait_for_workers=waits,
        # With an open socket the store listens on the socket's address only, otherwise on all interfaces.
        master_listen_fd=listener.detach() if listener else None,
    )


def _listen_at(host: str, port: int) -> socket.socket:
    for address in dict.fromkeys((host, reachable_address())):  # behind a NAT the public address cannot be bound
        try:
            return _listen(address, port)
        except OSError as error:
            failure = error
            if error.errno == errno.EADDRINUSE:  # the other ranks would connect to the process that has this port
                break
    raise LaunchError(
        f"rank 0 cannot listen at {host}:{port} ({failure.strerror}); set MASTER_ADDR to an address of rank 0's host "
        "and MASTER_PORT to a free port there"
    )


def _listen(address: str, port: int) -> socket.socket:
    family, _, _, _, at = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(at)
        listener.listen(socket.SOMAXCONN)
    except OSError:
        listener.close()
        raise
    return listener


def use_loopback_for_gloo() -> None:
    """Let gloo use the loopback interface, for ranks of one node, unless GLOO_SOCKET_IFNAME is set.

    By default gloo resolves the host's own name, which fails on many laptops and in many containers.
    """
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)


def reachable_address() -> str:
    """Return this host's address for other hosts: that of its name, else of its default route, else loopback."""
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        address = "127.0.0.1"
    # On Debian a host's own name resolves to 127.0.1.1, which other hosts cannot reach.
    return _address_of_way_out() if address.startswith("127.") else address


def _address_of_way_out() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # address for documentation: connecting a UDP socket sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
