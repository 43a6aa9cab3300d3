"""A run whose ranks note, in the folder NOTES, their process, what they had loaded at their end, and when they left.

`python leaving_program.py NOTES ARGUMENTS...` runs the public command, as one of the ranks. In place of the report the
root writes `left`: the ranks that had left by then.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from pathlib import Path
from typing import Any

from mpitrain.cli.main import main
from mpitrain.comm.supervision.status_folder import has_ended, process_born
from mpitrain.runs import finish

LIMIT_S = 20.0


def main_of_rank(notes: Path) -> int:
    rank = os.environ["PMI_RANK"]
    (notes / f"process-{rank}").write_text(f"{os.getpid()} {process_born(os.getpid())}")
    atexit.register(lambda: (notes / f"loaded-{rank}").write_text(" ".join(sys.modules)))

    def write_left(*_: Any) -> None:
        others = [path for path in notes.glob("process-*") if path.name != f"process-{rank}"]
        deadline_s = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline_s and not all(_has_left(path) for path in others):
            time.sleep(0.05)
        (notes / "left").write_text(" ".join(sorted(path.name for path in others if _has_left(path))))

    finish.write_page = write_left
    return main()


def _has_left(path: Path) -> bool:
    pid, born = path.read_text().split()
    return has_ended(int(pid), born)


if __name__ == "__main__":
    folder = Path(sys.argv.pop(1))
    sys.exit(main_of_rank(folder))
