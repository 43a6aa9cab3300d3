"""Faults of one rank while it trains, by number: kinds x phases x ranks x launchers, with what each must end in.

Ranks that are started by hand are forks of this process, which has loaded everything and started nothing of MPI; those
of a launcher are started by it. After each fault the run is resumed on one rank: it must reach the hash that a run
without faults reaches, whatever the number of ranks was.

`python tests/lab/campaign/fault_schedules.py FOLDER 0-1999 --at-once 3` plays these (or single numbers: 4 11), and
prints how many of each kind ended as they must. Begun again in the same folder, it goes on. `--launcher` takes the
place of what the schedules have drawn; on a cluster, srun starts the ranks on two nodes.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import faulty_run
from conftest import TIMEOUT_S, find_mpirun, launcher_environment
from faulty_run import ASKING, OF_ROOT, PHASES, SPEAKING, STAYING, VANISHING
from killed_runs import SETTINGS, hash_of, newest_step, start
from start_faults import free_port
from workers import Done, exit_code_of, forget_shared_memory, play_in_workers

LAUNCHERS = {"by hand": 7, "mpirun": 2, "torchrun": 1}  # with how often of ten each is drawn
SECONDS_TO_END, STALL_LIMIT_S, SECONDS_TO_START = 10.0, 6.0, 30.0
SAYS = {
    "bug": (1, "ZeroDivisionError: injected"),
    "no memory": (1, "MemoryError: injected"),
    "our error": (2, "injected"),
    "sys.exit(0)": (1, "SystemExit: 0"),
    "sys.exit(3)": (1, "SystemExit: 3"),
    "interrupt": (130, "interrupted"),
}
_BUGS = ("bug", "no memory", "sys.exit(0)", "sys.exit(3)")
_BEFORE_THE_FOLDER = ("opening the data", "preparing", "making the folder")  # so that the traceback can go nowhere else
# After these the training is over: a request to stop comes too late.
_TRAINED = ("finishing", "writing the model", "writing the report", "predicting", "the last meeting")


@dataclass(frozen=True)
class Schedule:
    """One fault of one run."""

    kind: str
    phase: str
    passing: int
    rank: int
    num_ranks: int
    launcher: str

    @property
    def asks(self) -> bool:
        """Whether the run is asked to stop; in the last meeting nobody listens any more, and the rank is killed."""
        return self.kind in ASKING and self.phase != "the last meeting"

    @property
    def vanishes(self) -> bool:
        """Whether the rank ends without a word."""
        return self.kind in (*VANISHING, *ASKING) and not self.asks


@dataclass(frozen=True)
class Ended:
    """What became of a launch: exit codes (the launcher's, or each rank's), error output, seconds since the fault."""

    codes: list[int]
    stderr: str
    seconds: float

    @property
    def our_lines(self) -> list[str]:
        lines = [line for line in re.split(r"[\r\n]", self.stderr) if line.startswith("mpitrain: ")]
        return [line for line in lines if not line.startswith("mpitrain: note: ")]


def schedule(number: int) -> Schedule:
    """Return fault `number`: always the same one."""
    draw = random.Random(number)
    kind = draw.choice([*SPEAKING, *VANISHING, *STAYING, *ASKING])
    # An exception in the last meeting would be one of our own few lines there.
    phases = [phase for phase in PHASES if not (kind in SPEAKING and phase == "the last meeting")]
    phase, num_ranks = draw.choice(phases), draw.choice((2, 3, 4))
    rank = 0 if phase in OF_ROOT else draw.randrange(num_ranks)
    (launcher,) = draw.choices(list(LAUNCHERS), list(LAUNCHERS.values()))
    return Schedule(kind, phase, draw.randrange(PHASES[phase][1]), rank, num_ranks, launcher)


class Campaign:
    """Plays schedules in a folder."""

    def __init__(self, folder: Path, history: Path, expected_hash: str, launcher: str | None) -> None:
        """`launcher` takes the place of what schedules draw."""
        self._launcher, self._folder, self._history, self._expected = launcher, folder, history, expected_hash

    def play(self, number: int) -> list[str]:
        """Run schedule `number` and resume it; return everything in which it ended otherwise than it must."""
        drawn, run, mark = schedule(number), self._folder / f"run-{number}", uuid.uuid4().hex
        one = replace(drawn, launcher=self._launcher or drawn.launcher)
        notes = run.with_suffix(".notes")
        self._remove(run)  # what a campaign that was ended has left
        stall_limit_s = STALL_LIMIT_S
        words = [one.kind, one.phase, str(one.rank), str(one.passing), str(notes), "train", f"output.model_dir={run}",
                 f"data.data_path={self._history}", *SETTINGS, f"distributed.timeout={stall_limit_s:.1f}"]  # fmt: skip
        environ = {**launcher_environment(), "MARK_OF_TEST": mark}
        limit_s = SECONDS_TO_END + (stall_limit_s if one.kind in STAYING else 0.0)
        try:
            ended = self._launch(one, words, environ, notes, limit_s)
        except subprocess.TimeoutExpired:
            return ["did not end"]
        finally:
            left = left_behind(mark, TIMEOUT_S)
        if not _fault_at(notes):
            return [f"ended before the fault: {ended.stderr[-800:]}"]
        problems = [f"left behind: {left}"] if left else []
        problems += problems_of_end(one, ended, limit_s)
        problems += self._problems_of_resuming(run, notes)
        if not problems:
            self._remove(run)
        return problems

    def _remove(self, run: Path) -> None:
        shutil.rmtree(run, ignore_errors=True)
        for path in self._folder.glob(f"{run.name}.*"):
            path.unlink()

    def _launch(self, one: Schedule, words: list[str], environ: dict[str, str], notes: Path, limit_s: float) -> Ended:
        stderr = notes.with_suffix(".faulty")
        if one.launcher == "by hand":
            meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(one.num_ranks)}
            environs = [{**environ, **meeting, "RANK": str(rank)} for rank in range(one.num_ranks)]
            pids = [fork_rank(words, own, stderr) for own in environs]
        else:
            environ["MPITRAIN_EXIT_CODE_FILE"] = str(notes.with_suffix(".code"))
            with stderr.open("w") as file:
                process = subprocess.Popen(
                    [*launcher_of(one), faulty_run.__file__, *words], env=environ, stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL, stderr=file, start_new_session=True,
                )  # fmt: skip
            pids = [process.pid]
        codes = _wait_for(pids, notes, limit_s, TIMEOUT_S)
        if one.launcher == "srun" and codes[0] > 5 and notes.with_suffix(".code").exists():  # as job scripts do
            codes = [int(notes.with_suffix(".code").read_text())]
        return Ended(codes, stderr.read_text(), time.time() - _fault_at(notes))

    def _problems_of_resuming(self, run: Path, notes: Path) -> list[str]:
        saved = [int(line.split()[1]) for line in notes.read_text().splitlines() if line.startswith("saved")]
        held = newest_step(run)
        if held < max(saved, default=0):
            return [f"step {max(saved)} was saved, {held} is left"]
        words = ["--resume"] if held else ["--overwrite"] if run.exists() else []
        pid = start(run, self._history, words)
        code = exit_code_of(pid)
        if code != 0:
            return [f"resumed: exit code {code}: {run.with_suffix('.err').read_text()[-400:]}"]
        digest, notices = hash_of(run)
        return [*notices, *([] if digest == self._expected else [f"hash {digest[:12]}, not {self._expected[:12]}"])]


def problems_of_end(one: Schedule, ended: Ended, limit_s: float) -> list[str]:
    """Return in what the end of a schedule differs from the table of expected outcomes."""
    problems = [f"took {ended.seconds:.1f} s"] if ended.seconds > limit_s else []
    is_torchruns = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError" in ended.stderr
    num_allowed = int(is_torchruns) + int(one.kind in _BUGS and one.phase in _BEFORE_THE_FOLDER)
    if ended.stderr.count("Traceback") > num_allowed:
        problems.append(f"a traceback: {ended.stderr[-1500:]}")
    if not are_expected(one, ended.codes):
        problems.append(f"exit codes {ended.codes}: {ended.our_lines}")
    pattern, lines = expected_line(one), ended.our_lines
    if pattern is None and lines and ended.codes[0] == 0:
        problems.append(f"said {lines}")
    if pattern is not None and not (len(lines) == 1 and re.match(pattern, lines[0])):
        problems.append(f"said {lines or ended.stderr[-800:]}, not {pattern}")
    return problems


def expected_line(one: Schedule) -> str | None:
    """Return what our one line must match; None where a request to stop came too late, or in the last moment."""
    rank = rf"rank {one.rank} on {re.escape(socket.gethostname())}"
    if one.asks:
        return None if one.phase in _TRAINED or _may_be_late(one) else rf"mpitrain: stopped by {one.kind} at step \d+, "
    if one.kind in SPEAKING:
        # What only the first rank does is agreed on: all raise its error.
        who = f"({rank}: )?" if one.phase in OF_ROOT and one.kind == "our error" else f"{rank}: "
        return f"mpitrain: error: {who}{re.escape(SAYS[one.kind][1])}"
    if one.vanishes:
        # A launcher may have ended the others before anybody has looked: then all are named together.
        together = "" if one.launcher == "by hand" else r"(rank \d+ on \S+ \(process \d+\), )*"
        return rf"mpitrain: error: {together}{rank} \(process \d+\).* exited without an error message"
    return rf"mpitrain: error: rank \d .*{rank}"


def _may_be_late(one: Schedule) -> bool:
    """Whether the request may come after the last step: then the run ends as if there was none."""
    return one.phase in ("a step", "validation", "a save", *OF_ROOT)


def are_expected(one: Schedule, codes: list[int]) -> bool:
    """Tell whether the exit codes are those of the table."""
    if one.asks:
        allowed = {0} if one.phase in _TRAINED else {0, 5} if _may_be_late(one) else {5}
        return set(codes) <= ({1 if code == 5 else code for code in allowed} if one.launcher == "torchrun" else allowed)
    if one.launcher == "torchrun":
        return codes == [1]
    if one.launcher == "srun":  # the largest of all ranks' codes, 128 and more for one that a signal has ended
        return codes == [SAYS[one.kind][0]] if one.kind in SPEAKING else codes[0] >= 3
    if one.launcher == "mpirun":
        known = SAYS[one.kind][0] if one.kind in SPEAKING else 3 if one.kind in STAYING else None
        # Of a rank that leaves with 0 and ends the job thereby, MPICH's mpirun often makes 0, without our package too.
        return codes[0] != 0 or one.kind == "os._exit(0)" if known is None else codes == [known]
    others = codes[: one.rank] + codes[one.rank + 1 :]
    if one.kind in SPEAKING:
        return set(codes) == {SAYS[one.kind][0]}
    return set(others) == {3} and (one.vanishes or codes[one.rank] != 0)


def fork_rank(words: list[str], environ: dict[str, str], stderr: Path) -> int:
    """Start one rank as a fork of this process, in a session of its own; return its process number."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
        os.environ.clear()
        os.environ.update(environ)
        code = faulty_run.main(words)
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def launcher_of(one: Schedule) -> list[str]:
    """The launcher's command, up to the program."""
    if one.launcher == "srun":
        return ["srun", "--time=3", "--mpi=pmi2", "--nodes=2", f"--ntasks={one.num_ranks}", sys.executable]
    if one.launcher == "mpirun":
        return [find_mpirun(), "-np", str(one.num_ranks), sys.executable]
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(one.num_ranks), "--monitor-interval", "0.2"]
    return [sys.executable, *torchrun, "--master-addr", "127.0.0.1", "--master-port", str(free_port())]


def _wait_for(pids: list[int], notes: Path, limit_s: float, start_limit_s: float) -> list[int]:
    """Return the exit codes. Raises TimeoutExpired, and kills what is left, long after what is allowed."""
    deadline_s, codes = time.time() + start_limit_s + limit_s, dict[int, int]()
    while len(codes) < len(pids):
        for pid in set(pids) - set(codes):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
                forget_shared_memory(pid)
        if time.time() > max(deadline_s, _fault_at(notes) + 2 * limit_s):
            for pid in set(pids) - set(codes):
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            raise subprocess.TimeoutExpired("ranks", limit_s)
        time.sleep(0.01)
    return [codes[pid] for pid in pids]


def _fault_at(notes: Path) -> float:
    lines = notes.read_text().splitlines() if notes.exists() else []
    return next((float(line.split()[1]) for line in lines if line.startswith("fault")), 0.0)


def left_behind(mark: str, limit_s: float) -> list[str]:
    """Return the commands of processes that are left after the limit; end them."""
    deadline_s = time.monotonic() + limit_s
    while left := [path for path in Path("/proc").glob("[0-9]*") if _has_mark(path, mark)]:
        if time.monotonic() > deadline_s:
            commands = [(path / "cmdline").read_bytes()[-90:].decode(errors="replace") for path in left]
            for path in left:
                os.kill(int(path.name), signal.SIGKILL)
            return commands
        time.sleep(0.05)
    return []


def _has_mark(path: Path, mark: str) -> bool:
    try:
        return mark.encode() in (path / "environ").read_bytes() and b") Z " not in (path / "stat").read_bytes()
    except OSError:
        return False


def prepare(folder: Path) -> tuple[Path, str]:
    """Load everything, once for all forks; return the data, and the hash of a run that nobody disturbs."""
    import mpitrain.runs.train_run  # noqa: F401
    from mpitrain.synthetic.history import write_synthetic_history

    folder.mkdir(parents=True, exist_ok=True)
    history = folder / "history.nc"
    write_synthetic_history(history, seed=3, num_latitudes=48, num_longitudes=72)
    undisturbed = folder / "undisturbed"
    shutil.rmtree(undisturbed, ignore_errors=True)
    code = exit_code_of(start(undisturbed, history, []))
    assert code == 0, undisturbed.with_suffix(".err").read_text()
    return history, hash_of(undisturbed)[0]


def main(folder: Path, numbers: Sequence[int], at_once: int, launcher: str | None) -> int:
    """Play these schedules; print a table and the problems; return how many had any.

    `done.txt` in the folder lists those that ended as they must: they are not played again.
    """

    def cell_of(number: int) -> tuple[str, str]:
        one = schedule(number)
        return launcher or one.launcher, one.kind

    begin = functools.partial(Campaign, folder, *prepare(folder), launcher)
    done, others = Done(folder / "done.txt"), Counter[tuple[str, str]]()
    todo = [number for number in numbers if number not in done.numbers]
    for number, problems in play_in_workers(lambda: begin().play, todo, at_once):
        if problems:
            others[cell_of(number)] += 1
            print(f"schedule {number}, {schedule(number)}: {'; '.join(problems)}", flush=True)
        else:
            done.add(number)
    as_expected = Counter(cell_of(number) for number in numbers if number in done.numbers)
    for cell in sorted({*as_expected, *others}):
        print(f"{cell[0]:10} {cell[1]:16} as expected {as_expected[cell]:4}, otherwise {others[cell]:4}")
    print(f"{len(numbers)} schedules, {as_expected.total()} as expected and resumed to the same hash")
    return others.total()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("numbers", nargs="+", help="such as 4 11 100-199")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--launcher", choices=["srun", "mpirun"])
    asked = parser.parse_args()
    ranges = [word.partition("-") for word in asked.numbers]
    chosen = [n for first, _, last in ranges for n in range(int(first), int(last or first) + 1)]
    sys.exit(min(1, main(asked.folder, chosen, asked.at_once, asked.launcher)))
