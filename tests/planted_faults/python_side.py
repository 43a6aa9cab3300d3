"""Python's side of the verification with a fault in each job: `python python_side.py JOBS.json` under mpirun."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from planted_faults.stages import planted
from planted_faults.table import FAULTS

from mpitrain.comm.ranks import Ranks
from mpitrain.comm.start import run_on_all_ranks
from mpitrain.verify.python_side import do_jobs


def do_faulty_jobs(ranks: Ranks, jobs: Sequence[Mapping[str, Any]]) -> int:
    stages = {fault.name: fault.stages for fault in FAULTS}
    for job in jobs:
        with planted(stages[job["fault"]]):
            do_jobs(ranks, [job])
    return 0


if __name__ == "__main__":
    wanted = json.loads(Path(sys.argv[1]).read_text())
    sys.exit(run_on_all_ranks(lambda ranks: do_faulty_jobs(ranks, wanted)))
