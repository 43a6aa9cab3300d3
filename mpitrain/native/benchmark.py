"""The C++ program's benchmark: the time of each training step, on synthetic samples that it makes itself."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from mpitrain.native.program import json_line_of, run_under_mpi


@dataclass(frozen=True)
class CppBenchmark:
    """What the C++ program is to time.

    `engine`: torch or plain. `reduction`: fixed (virtual ranks, their tree), any (one slice a rank, one Allreduce) or
    original (one slice a rank, one Allreduce for each parameter, libtorch's Adam). `sizes`: units of each level, from
    7 to 1. `global_batch_size`: a number or "full"; it and `num_samples` must be multiples of the slices' number.
    """

    engine: str
    reduction: str
    sizes: tuple[int, ...]
    hidden_activation: str
    output_activation: str
    global_batch_size: int | str
    num_samples: int
    num_steps: int
    num_warmup_steps: int

    def flags(self) -> list[str]:
        """Return the program's flags."""
        values = {
            "benchmark": self.num_steps,
            "warmup": self.num_warmup_steps,
            "engine": self.engine,
            "reduction": self.reduction,
            "network": "-".join(map(str, self.sizes)),
            "hidden-activation": self.hidden_activation,
            "output-activation": self.output_activation,
            "batch-size": self.global_batch_size,
            "samples": self.num_samples,
        }
        return [word for name, value in values.items() for word in (f"--{name}", str(value))]


def time_cpp_steps(mpirun: str, program: Path, num_ranks: int, benchmark: CppBenchmark) -> list[float]:
    """Run the benchmark on `num_ranks` ranks and return the root's time of each step in microseconds.

    Raises UserError with the program's own message, else MpitrainError.
    """
    output = run_under_mpi(mpirun, num_ranks, [str(program), *benchmark.flags()])
    return [float(step_us) for step_us in json.loads(json_line_of(output))["step_us"]]
