"""How a process leaves when its command has ended."""

from __future__ import annotations

import subprocess
import sys

from conftest import TIMEOUT_S

LEAVING = """
import os, signal, sys
from mpitrain.cli import main as module

module._run = lambda words: 5
code = module.main()
os.kill(os.getpid(), signal.SIGTERM)
sys.exit(code)
"""


def test_a_rank_that_is_on_its_way_out_keeps_its_exit_code() -> None:
    """A scheduler ends the ranks that are left when the first one has gone with a code of its own."""
    done = subprocess.run([sys.executable, "-c", LEAVING], check=False, timeout=TIMEOUT_S)
    assert done.returncode == 5
