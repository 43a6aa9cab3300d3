"""Device of a rank: the CPU or a GPU of its node. Torch is queried only if the node has a GPU driver."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from mpitrain.errors import LaunchError

# Device files of the GPU drivers of NVIDIA, AMD and the Windows Subsystem for Linux.
_DRIVER_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg")


class Device(str):
    """A device by its torch name; a string, which torch accepts as a `device` argument.

    Parameters
    ----------
    object : str
        Torch name of the device, for example "cpu" or "cuda:1".
    """

    __slots__ = ()

    @property
    def type(self) -> str:
        """The device type, "cpu" or "cuda"."""
        return self.partition(":")[0]

    @property
    def gpu(self) -> str | None:
        """Identifier of this GPU: its uuid; its torch name and host if torch has no uuid; None for a CPU."""
        if self.type != "cuda":
            return None
        import torch

        uuid = getattr(torch.cuda.get_device_properties(self), "uuid", None)
        return str(uuid or f"{self} of {socket.gethostname()}")


CPU = Device("cpu")


def choose_device(requested: str, local_rank: int) -> Device:
    """Return this rank's device. Raises LaunchError if a GPU is requested and this rank has none."""
    if requested == "cpu" or (requested == "auto" and not has_gpu_driver()):
        return CPU
    num_visible = count_visible_gpus()
    if requested == "auto" and num_visible == 0:
        return CPU
    if num_visible == 0:
        raise LaunchError(
            "compute.device=cuda: this rank sees no GPU; check CUDA_VISIBLE_DEVICES, or use compute.device=auto"
        )
    # If a launcher makes only one GPU visible to each rank, its index is 0 for any local rank.
    index = 0 if num_visible == 1 else local_rank
    if index >= num_visible:
        raise LaunchError(
            f"local rank {local_rank} has no GPU: {num_visible} visible; start at most one rank per visible GPU on "
            "each node"
        )
    return Device(f"cuda:{index}")


def find_gpu_conflict(hosts: Sequence[str], gpus: Sequence[str | None]) -> tuple[str, str] | None:
    """Return a problem with the ranks' GPUs and the advice; None if each rank has its own GPU, or no rank has one.

    `hosts` and `gpus` are in rank order; `gpus` contains the values of `Device.gpu`.
    """
    if not any(gpus):
        return None
    for rank, (host, gpu) in enumerate(zip(hosts, gpus, strict=True)):
        if gpu is None:
            return f"rank {rank} on {host} has no GPU, other ranks have one", "request one GPU per rank on every host"
        if gpu in gpus[:rank]:
            problem = f"{host}: ranks {gpus.index(gpu)} and {rank} share the GPU {gpu}"
            return problem, "start one rank per GPU: --gpus-per-task=1, or fewer ranks on that host"
    return None


def has_gpu_driver() -> bool:
    """Return whether this node has a GPU driver."""
    return any(Path(path).exists() for path in _DRIVER_FILES)


def count_visible_gpus() -> int:
    """Return the number of GPUs visible to torch; 0 if torch is not installed."""
    try:
        import torch
    except ImportError:
        return 0
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
