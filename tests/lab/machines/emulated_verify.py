"""`mpitrain verify` with every rank of both programs on another CPU: `python emulated_verify.py EMULATOR ... -- FLAGS`.

The C++ program is built without instructions that the emulated CPU may lack.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from conftest import EMULATION_VARIABLES

from mpitrain.cli.main import main
from mpitrain.native.program import run_under_mpi
from mpitrain.native.toolchain import Toolchain, find_toolchain
from mpitrain.verify import verify


def find_portable_toolchain() -> Toolchain:
    found = find_toolchain()
    return dataclasses.replace(found, cpu=dataclasses.replace(found.cpu, instruction_sets=()))


def run_emulated(emulator: Sequence[str], flags: Sequence[str]) -> int:
    verify.find_toolchain = find_portable_toolchain
    verify.run_under_mpi = lambda launcher, num_ranks, command: run_under_mpi(
        launcher, num_ranks, [*emulator, *command], variables=EMULATION_VARIABLES
    )
    return main(["verify", *flags])


if __name__ == "__main__":
    end = sys.argv.index("--")
    sys.exit(run_emulated(sys.argv[1:end], sys.argv[end + 1 :]))
