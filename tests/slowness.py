"""How slow this machine is at the moment: limits in seconds are meant for a quiet one."""

from __future__ import annotations

import subprocess
import sys
import time

_QUIET_S = 2.0


def slowness() -> float:
    """How many times longer than on a quiet machine it takes to start Python with torch; at least 1."""
    started_s = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True, timeout=300)
    return max(1.0, (time.monotonic() - started_s) / _QUIET_S)


def assert_within(limit_s: float, seconds: float, what: str) -> None:
    """Fail if `what` took longer than `limit_s`; on a machine that is busy just now, than so many times longer."""
    if seconds > limit_s:
        times = slowness()
        assert seconds < limit_s * times, f"{what}: {seconds:.1f} s, on a machine {times:.1f} times slower than quiet"
