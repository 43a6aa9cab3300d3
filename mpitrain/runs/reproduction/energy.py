"""The energy used by the CPUs (RAPL) and GPUs (NVML) of a node, if the machine reports it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

_POWERCAP = Path("/sys/class/powercap")


_INTERVAL_S = 60.0


class EnergyMeter:
    """Meter of this node's energy since construction; `joules` has `cpu` (RAPL packages) and `gpu` (NVML) if reported.

    RAPL counters wrap around at their range, after a few minutes under load, so a thread reads them every minute.
    """

    def __init__(self, powercap: Path = _POWERCAP) -> None:
        self._powercap, self.joules = powercap, dict[str, float]()
        self._last = {zone: value for zone in self._packages() if (value := _read(zone / "energy_uj")) is not None}
        if self._last:
            self.joules["cpu"] = 0.0
        self._gpus = _nvml_devices()
        self._gpu_start_mj = self._gpu_mj() if self._gpus else 0
        self._stopped = threading.Event()
        if self._last:
            threading.Thread(target=self._keep_reading, name="mpitrain energy", daemon=True).start()

    def stop(self) -> dict[str, float]:
        """Read the counters for the last time and return the joules."""
        self._stopped.set()
        self.update()
        return self.joules

    def update(self) -> None:
        """Add the energy used since the last call."""
        for zone, before in self._last.items():
            now = _read(zone / "energy_uj")
            if now is not None:
                wrapped = (_read(zone / "max_energy_range_uj") or 0) if now < before else 0
                self.joules["cpu"] += (now - before + wrapped) / 1e6
                self._last[zone] = now
        if self._gpus:
            self.joules["gpu"] = (self._gpu_mj() - self._gpu_start_mj) / 1e3

    def _keep_reading(self) -> None:
        while not self._stopped.wait(_INTERVAL_S):
            self.update()

    def _packages(self) -> list[Path]:
        # intel-rapl:0 is a package (AMD's too), intel-rapl:0:0 a part of it.
        return sorted(zone for zone in self._powercap.glob("intel-rapl:*") if zone.name.count(":") == 1)

    def _gpu_mj(self) -> int:
        import pynvml

        return sum(int(pynvml.nvmlDeviceGetTotalEnergyConsumption(device)) for device in self._gpus)


def _read(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # at most sites only root may read it
        return None


def _nvml_devices() -> list[Any]:
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
        devices = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        for device in devices:
            pynvml.nvmlDeviceGetTotalEnergyConsumption(device)
    except pynvml.NVMLError:  # no driver, or a GPU without an energy counter
        return []
    return devices
