"""Programs under an emulator of another CPU, such as `qemu-x86_64 -cpu EPYC`."""

from __future__ import annotations

import shlex
import shutil

from mpitrain.errors import MissingDependencyError, UserError

# MPICH reads messages of some 10 KB and more from the other process's memory, by a system call that QEMU has not.
EMULATION_VARIABLES = {"MPIR_CVAR_CH4_CMA_ENABLE": "0"}


def parse_emulator(text: str) -> tuple[str, ...]:
    """Return the words of an emulator's command line. Raises UserError, or MissingDependencyError naming a package."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UserError(f"--emulate {text}: {error}; give a command such as 'qemu-x86_64 -cpu EPYC'") from error
    if not words:
        raise UserError("--emulate: no command; give one such as 'qemu-x86_64 -cpu EPYC'")
    if shutil.which(words[0]) is None:
        raise MissingDependencyError(
            f"--emulate {text}: no {words[0]} on the PATH; on Debian or Ubuntu: apt-get install qemu-user"
        )
    return words
