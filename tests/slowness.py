"""How slow this machine is at the moment: limits in seconds are meant for a quiet one."""

from __future__ import annotations

import subprocess
import sys
import time

import tiers

_QUIET_S = 2.0
# Computes for a while and prints the share of that time in which it had a core.
_SPINNING = """
import time
started_s = time.perf_counter()
while (wall_s := time.perf_counter() - started_s) < 0.3:
    pass
print(time.process_time() / wall_s)
"""


def slowness() -> float:
    """How many times longer than on a quiet machine it takes to start Python with torch; at least 1."""
    started_s = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True, timeout=300)
    return max(1.0, (time.monotonic() - started_s) / _QUIET_S)


def assert_within(limit_s: float, seconds: float, what: str) -> None:
    """Fail if `what` took longer than `limit_s`; on a machine that is busy just now, than so many times longer.

    Tests of the tiers `fast` and `ranks` judge no time: they run beside other work, and must not fail for its sake.
    """
    if seconds > limit_s and tiers.judges_time():
        times = slowness()
        assert seconds < limit_s * times, f"{what}: {seconds:.1f} s, on a machine {times:.1f} times slower than quiet"


def cores_are_free(num_cores: int) -> bool:
    """Whether so many programs that compute at once each have a core to themselves, all but 15 % of the time."""
    command = [sys.executable, "-S", "-c", _SPINNING]
    spinning = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(num_cores)]
    shares = [float(process.communicate(timeout=60)[0]) for process in spinning]
    return min(shares) > 0.85
