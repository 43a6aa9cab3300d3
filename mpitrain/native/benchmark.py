"""The C++ program's benchmark: the time of each training step, on synthetic samples that it makes itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from mpitrain.native.program import json_line_of, run_under_mpi


def time_cpp_steps(
    launcher: str | Sequence[str], program: Path, num_ranks: int, flags: Mapping[str, object]
) -> list[float]:
    """Run the benchmark on `num_ranks` ranks and return the root's time of each step in microseconds.

    `launcher`: see `run_under_mpi`. `flags`: the program's, without their dashes. Raises UserError with the program's
    own message, else MpitrainError.
    """
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    output = run_under_mpi(launcher, num_ranks, [str(program), *words])
    return [float(step_us) for step_us in json.loads(json_line_of(output))["step_us"]]
