"""What a rank's GPU is doing: memory by torch, use by NVML's own library where it is installed."""

from __future__ import annotations

import functools
from typing import Any

from mpitrain.comm import Device


def gpu_use(device: Device) -> dict[str, float] | None:
    """Return the GPU's memory in MiB (now, at most, in all) and its use in percent; None for a CPU."""
    if device.type != "cuda":
        return None
    import torch

    use = {
        "memory_mib": torch.cuda.memory_allocated(device) / 2**20,
        "most_memory_mib": torch.cuda.max_memory_allocated(device) / 2**20,
        "total_memory_mib": torch.cuda.get_device_properties(device).total_memory / 2**20,
    }
    handle = _nvml_handle(str(torch.cuda.get_device_properties(device).uuid))
    if handle is not None:
        import pynvml

        rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
        use |= {"use_percent": float(rates.gpu), "memory_use_percent": float(rates.memory)}
    return {name: round(value, 1) for name, value in use.items()}


@functools.cache
def _nvml_handle(uuid: str) -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except pynvml.NVMLError:  # no driver library, or a part of a GPU
        return None
