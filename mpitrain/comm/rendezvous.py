"""Where torch.distributed's processes meet: a store whose address and port are agreed over MPI, never a fixed port."""

from __future__ import annotations

import datetime
import socket

import torch.distributed as dist

from mpitrain.comm.communicator import Communicator


def open_store_over(communicator: Communicator, timeout: datetime.timedelta, is_one_host: bool) -> dist.Store:
    """Return a store that all ranks share: rank 0 binds a free port and tells the others. Collective."""
    listener = (
        _listen_on_free_port("127.0.0.1" if is_one_host else reachable_address()) if communicator.rank == 0 else None
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


def _listen_on_free_port(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((address, 0))
    listener.listen()
    return listener


def reachable_address() -> str:
    """Return this host's address as its name resolves; loopback when the name does not resolve to another."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
