"""Large arrays that come and go use the same memory again, which the system need not clear each time."""

import os
import platform
import resource
import subprocess
import sys

import pytest

pytestmark = pytest.mark.ranks

COME_AND_GO = """
import sys
import numpy as np
from mpitrain.cluster.cpu.freed_memory import keep_freed_memory

keep_freed_memory(dict([sys.argv[1:]]) if sys.argv[1:] else {})
for _ in range(40):
    parts = [np.ones(1 << 17) for _ in range(20)]
    del parts
import resource
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""
PAGES = 40 * 20 * 2**20 // resource.getpagesize()


def pages_asked_for(*setting: str) -> int:
    environ = {name: text for name, text in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", COME_AND_GO, *setting]
    return int(subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc's")
def test_arrays_use_the_memory_of_those_before() -> None:
    assert pages_asked_for() < PAGES / 3 < pages_asked_for("MALLOC_ARENA_MAX", "1")
