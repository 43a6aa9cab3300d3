"""Where torch.distributed's processes meet: a store whose address and port are agreed over MPI, never a fixed port."""

from __future__ import annotations

import datetime
import os
import socket

import torch.distributed as dist

from mpitrain.comm.communicator import Communicator


def open_store_over(communicator: Communicator, timeout: datetime.timedelta, is_one_host: bool) -> dist.Store:
    """Return a store that all ranks share: rank 0 binds a free port and tells the others. Collective."""
    listener = (
        listen_on_free_port("127.0.0.1" if is_one_host else reachable_address()) if communicator.rank == 0 else None
    )
    address, port = communicator.broadcast_object(listener.getsockname()[:2] if listener else None)
    store = dist.TCPStore(
        address,
        port,
        world_size=communicator.size,
        is_master=communicator.rank == 0,
        timeout=timeout,
        # Given an open socket the store listens on its one address; by itself it would listen on all interfaces.
        master_listen_fd=listener.detach() if listener else None,
    )
    communicator.barrier()
    return store


def use_loopback_for_gloo() -> None:
    """Let gloo use the loopback interface, unless the user names one: for ranks of one node.

    Without this gloo resolves the host's own name, which many laptops and containers cannot.
    """
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)


def listen_on_free_port(address: str) -> socket.socket:
    """Return a socket that listens on one address, at a port that was free."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((address, 0))
    listener.listen()
    return listener


def reachable_address() -> str:
    """Return the address at which other hosts reach this one: its name's, else that of its way out, else loopback."""
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        address = "127.0.0.1"
    # Debian's installer lets a host's own name resolve to 127.0.1.1, where no other host finds it.
    return _address_of_way_out() if address.startswith("127.") else address


def _address_of_way_out() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for examples: a datagram socket only looks up the route
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
