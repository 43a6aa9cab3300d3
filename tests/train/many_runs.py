"""Many runs of the command in one launch: importing torch costs more than a small run, so tests share one import.

As a script, on each rank: `python many_runs.py JOBS.json`, a list of argument lists. As a module: `run_many`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """One run: the exit code of each rank, and what all ranks together wrote."""

    codes: list[int]
    stdout: str
    stderr: str

    @property
    def our_lines(self) -> list[str]:
        return [line for line in self.stderr.splitlines() if line.startswith("mpitrain: ")]


def run_many(folder: Path, num_ranks: int | None, jobs: list[list[str]]) -> list[Outcome]:
    """Run every argument list of `jobs` in one launch on `num_ranks` ranks (None: without mpirun).

    A run that ends its process, instead of returning an exit code, fails the test, as does a launch that takes longer.
    """
    from conftest import launch

    folder.mkdir(parents=True)
    jobs_file = folder / "jobs.json"
    jobs_file.write_text(json.dumps(jobs))
    done = launch([str(Path(__file__)), str(jobs_file)], num_ranks)
    outcomes = [_outcome(folder, number) for number in range(len(jobs))]
    expected = num_ranks or 1
    for arguments, outcome in zip(jobs, outcomes, strict=True):
        assert len(outcome.codes) == expected, f"{arguments} ended its process: {outcome.stderr}\n{done.stderr}"
    assert done.returncode == 0, done.stderr
    return outcomes


def _outcome(folder: Path, number: int) -> Outcome:
    def texts(kind: str) -> list[str]:
        return [path.read_text() for path in sorted(folder.glob(f"{number:04d}.*.{kind}"))]

    return Outcome([int(code) for code in texts("code")], "".join(texts("out")), "".join(texts("err")))


def main(jobs_file: Path) -> None:
    """Run the jobs; standard output, standard error and exit code of each go to files of their own."""
    from mpitrain.cli.main import main as command
    from mpitrain.observe import report

    report._draw_plots = lambda *_: {}  # drawing takes ten times as long as a small training
    for number, arguments in enumerate(json.loads(jobs_file.read_text())):
        stem = str(jobs_file.with_name(f"{number:04d}.{os.getpid()}"))
        with (
            Path(f"{stem}.out").open("w") as out,
            Path(f"{stem}.err").open("w") as err,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = command(arguments)
        Path(f"{stem}.code").write_text(str(code))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
