"""Where a rank computes: on a CPU, or on a GPU of its node. Asks torch only where the node has a GPU's driver."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from mpitrain.errors import LaunchError

# Device files of the drivers of NVIDIA, AMD and the Windows Subsystem for Linux.
_DRIVER_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg")


class Device(str):
    """A device by torch's name for it, such as "cpu" or "cuda:1"; torch takes it where it takes a device."""

    __slots__ = ()

    @property
    def type(self) -> str:
        """The kind of device, cpu or cuda."""
        return self.partition(":")[0]

    @property
    def gpu(self) -> str | None:
        """What names this GPU for all ranks, also where each sees its own alone; None for a CPU."""
        if self.type != "cuda":
            return None
        import torch

        uuid = getattr(torch.cuda.get_device_properties(self), "uuid", None)
        return str(uuid or f"{self} of {socket.gethostname()}")


CPU = Device("cpu")


def choose_device(requested: str, local_rank: int) -> Device:
    """Return this rank's device. Raises LaunchError when a GPU is asked for and none is visible."""
    if requested == "cpu" or (requested == "auto" and not has_gpu_driver()):
        return CPU
    num_visible = count_visible_gpus()
    if requested == "auto" and num_visible == 0:
        return CPU
    if num_visible == 0:
        raise LaunchError(
            "compute.device=cuda: this rank sees no GPU; check CUDA_VISIBLE_DEVICES, or use compute.device=auto"
        )
    # A launcher that shows each rank only its own GPU numbers it 0, whatever the local rank.
    index = 0 if num_visible == 1 else local_rank
    if index >= num_visible:
        raise LaunchError(
            f"local rank {local_rank} has no GPU of its own: {num_visible} visible; start at most "
            f"{num_visible} ranks a node"
        )
    return Device(f"cuda:{index}")


def find_gpu_conflict(hosts: Sequence[str], gpus: Sequence[str | None]) -> tuple[str, str] | None:
    """Return what is wrong with the ranks' GPUs, and what to do; None where each has its own, or none has one.

    `hosts` and `gpus` are in rank order, a GPU as `Device.gpu` names it.
    """
    if not any(gpus):
        return None
    for rank, (host, gpu) in enumerate(zip(hosts, gpus, strict=True)):
        if gpu is None:
            return f"rank {rank} on {host} has no GPU, others have", "ask for as many GPUs as ranks on every host"
        if gpu in gpus[:rank]:
            what = f"{host}: ranks {gpus.index(gpu)} and {rank} share the GPU {gpu}"
            return what, "start one rank a GPU: --gpus-per-task=1, or fewer ranks on that host"
    return None


def has_gpu_driver() -> bool:
    """Return whether this node has a GPU's driver."""
    return any(Path(path).exists() for path in _DRIVER_FILES)


def count_visible_gpus() -> int:
    """Return how many GPUs torch sees; 0 where it is not installed."""
    try:
        import torch
    except ImportError:
        return 0
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
