"""`mpitrain bench ensemble`: an ensemble's time and memory beside those of its members trained one by one."""

from __future__ import annotations

import importlib.util
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mpitrain.bench.ensemble.memory import peak_pss
from mpitrain.bench.output import render_table
from mpitrain.bench.step_cases import Network
from mpitrain.errors import MpitrainError
from mpitrain.native.program import json_line_of, run_command
from mpitrain.native.toolchain import find_mpirun
from mpitrain.synthetic.history import write_synthetic_history

Say = Callable[[str], None]
_PLAIN_LOOP = [sys.executable, "-m", "mpitrain.bench.ensemble.plain_loop"]


@dataclass(frozen=True)
class Baseline:
    """Another way to train many networks: `package` must be installed; of it `epochs` (None: all) are measured.

    A few members are trained, then the whole is computed. What is measured in few epochs costs nothing but
    epochs: a trial of Ray Tune starts a process of its own.
    """

    title: str
    package: str
    install: str
    epochs: int | None


BASELINES = {
    "loop": Baseline("a loop over plain PyTorch", "torch", "torch", 2),
    "joblib": Baseline("joblib over plain PyTorch", "joblib", "joblib", None),
    "ray": Baseline("Ray Tune over plain PyTorch", "ray", "'ray[tune]'", None),
}
"""By the name that `plain_loop` has for them."""
_SEED = 0
_MEMBERS_A_PROCESS = 2
FEW_MEMBERS, MANY_TIMES = 2, 4
"""What a member costs is told from two members and from many times those measured: a start's time wavers by several."""


@dataclass(frozen=True)
class EnsembleCase:
    """What is measured: `members` networks, `epochs` each, on `ranks`, in so many `rounds`.

    `alone` of them are launched one by one.
    """

    network: Network
    members: int
    epochs: int
    ranks: int
    alone: int
    rounds: int

    @property
    def settings(self) -> list[str]:
        """The settings of the ensemble, and of its members."""
        return [*self.network.settings, f"training.epochs={self.epochs}"]


@dataclass(frozen=True)
class EnsembleTimes:
    """Seconds. `member_s`: one member's epochs with their validation, launched alone on one rank.

    `start_s`: an ensemble of one short member a rank; `launch_s`: one member's whole launch. Processor time on one
    rank: `one_rank_cpu_s` of all, `many_cpu_s` of `MANY_TIMES` as many of one epoch, `few_cpu_s` of `FEW_MEMBERS` such.
    `baselines_s`: all members by each of `BASELINES` that is installed, in as many processes as there are ranks but for
    the loop.
    """

    wall_s: float
    start_s: float
    member_s: float
    one_rank_wall_s: float
    one_rank_cpu_s: float
    many_cpu_s: float
    few_cpu_s: float
    launch_s: float
    baselines_s: Mapping[str, float]

    def figures(self, case: EnsembleCase) -> dict[str, float]:
        """Return the promised ratios: time over the ideal, over launches, and a member's cost beyond its epochs."""
        ideal_s = self.member_s * case.members / case.ranks + self.start_s
        short_member_s = (self.many_cpu_s - self.few_cpu_s) / (MANY_TIMES * case.members - FEW_MEMBERS)
        start_cpu_s = self.few_cpu_s - FEW_MEMBERS * short_member_s
        member_cpu_s = (self.one_rank_cpu_s - start_cpu_s) / case.members
        epoch_s = (member_cpu_s - short_member_s) / (case.epochs - 1)
        return {
            "wall_over_ideal": self.wall_s / ideal_s,
            "launches_over_wall": self.launch_s * case.members / self.wall_s,
            "beyond_training_ms_a_member": 1e3 * (short_member_s - epoch_s),
        }


def measure_ensemble(case: EnsembleCase, folder: Path, say: Say) -> EnsembleTimes:
    """Measure all in turn, in `folder`. Raises the errors of the launches."""
    history = folder / "history.nc"
    num_samples = write_synthetic_history(history, seed=_SEED).num_samples_north
    words = [*case.settings, f"data.data_path={history}"]
    # Its kernel may have to be built first, once for this machine.
    _timed(1, "train", folder / "first", *words, "training.epochs=1")
    walls_s, cpus_s = _ensembles_s(case, words, folder, say)
    say(f"{case.alone} members launched one by one")
    launches_s, members_s = [], []
    for number in range(case.alone):
        config, alone = folder / f"all1/members/{number:04d}/config.yaml", folder / f"alone{number}"
        launches_s.append(_timed(1, "train", alone, str(config))[0])
        members_s.append(_epochs_s(alone))
    baselines_s = {}
    for name, baseline in BASELINES.items():
        if importlib.util.find_spec(baseline.package) is None:
            say(f"{baseline.title}: not measured; python -m pip install {baseline.install}")
            continue
        say(baseline.title)
        try:
            baselines_s[name] = _baseline_s(case, num_samples, name)
        except MpitrainError as error:  # what was measured before it took minutes
            say(f"{baseline.title}: not measured; {error}")
    return EnsembleTimes(
        walls_s["all"], walls_s["start"], statistics.median(members_s), walls_s["one_rank"], cpus_s["one_rank"],
        cpus_s["many"], cpus_s["few"], statistics.median(launches_s), baselines_s,
    )  # fmt: skip


def _ensembles_s(
    case: EnsembleCase, words: Sequence[str], folder: Path, say: Say
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the median wall and processor times of ensembles that differ in one thing, launched in turn."""
    short = "training.epochs=1"
    launches = {
        "all": (case.ranks, case.members, []),
        "start": (case.ranks, case.ranks, [short]),
        "one_rank": (1, case.members, []),
        "many": (1, MANY_TIMES * case.members, [short]),
        "few": (1, FEW_MEMBERS, [short]),
    }
    timed: dict[str, list[tuple[float, float]]] = {name: [] for name in launches}
    for number in range(1, case.rounds + 1):
        say(f"round {number} of {case.rounds}: {case.members} members on {case.ranks} ranks and on one")
        for name, (num_ranks, members, own) in launches.items():
            own_words = [*words, *own, f"ensemble.members={members}"]
            timed[name].append(_timed(num_ranks, "ensemble", folder / f"{name}{number}", *own_words))
    medians = {name: [statistics.median(times) for times in zip(*both, strict=True)] for name, both in timed.items()}
    return {name: both[0] for name, both in medians.items()}, {name: both[1] for name, both in medians.items()}


def _command(num_ranks: int, command: str, folder: Path, *words: str) -> list[str]:
    start = [find_mpirun(), "-np", str(num_ranks), sys.executable, "-m", "mpitrain"]
    return [*start, command, *words, f"output.model_dir={folder}"]


def _timed(num_ranks: int, command: str, folder: Path, *words: str) -> tuple[float, float]:
    """Return the wall time of a launch, and the processor time of all that it has started."""
    started_s, before_s = time.perf_counter(), _cpu_of_ended_s()
    run_command(_command(num_ranks, command, folder, *words), num_ranks)
    return time.perf_counter() - started_s, _cpu_of_ended_s() - before_s


def _cpu_of_ended_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _epochs_s(run: Path) -> float:
    """Return the time of a run's epochs with their validation, without what is written beside them."""
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return sum(float(record["wall_time_s"]) for record in records)


def _baseline_s(case: EnsembleCase, num_samples: int, name: str) -> float:
    baseline, processes = BASELINES[name], 1 if name == "loop" else case.ranks
    members, epochs = _MEMBERS_A_PROCESS * processes, baseline.epochs or case.epochs
    flags = {
        "by": name, "members": members, "epochs": epochs, "samples": num_samples, "network": case.network.name,
        "processes": processes,
    }  # fmt: skip
    words = [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
    found = json.loads(json_line_of(run_command([*_PLAIN_LOOP, *words], 1)))["seconds"]
    return float(found) * case.epochs / epochs * case.members / members


@dataclass(frozen=True)
class EnsembleMemory:
    """Most bytes of all ranks together on `num_samples`: of one member, of all, and of a run with few samples."""

    num_samples: int
    one_member: int
    all_members: int
    imports: int

    @property
    def ratio(self) -> float:
        """All members' memory over one member's, both beyond what a run without samples holds."""
        return (self.all_members - self.imports) / (self.one_member - self.imports)


def measure_memory(case: EnsembleCase, num_samples: int, folder: Path, say: Say) -> EnsembleMemory:
    """Measure one epoch of one member and of all on at least `num_samples` samples, in full batches, in `folder`."""
    few = write_synthetic_history(folder / "few.nc", seed=_SEED).num_samples_north
    # The default is one time.
    num_times = -(-num_samples // few)
    many = write_synthetic_history(folder / "many.nc", seed=_SEED, num_times=num_times).num_samples_north
    peaks = []
    for name, members in (("many", 1), ("many", case.members), ("few", 1)):
        say(f"memory: {members} members, {many if name == 'many' else few} samples")
        words = [*case.network.settings, "training.epochs=1", "training.global_batch_size=full"]
        words += [f"data.data_path={folder / name}.nc", f"ensemble.members={members}"]
        peaks.append(peak_pss(_command(case.ranks, "ensemble", folder / f"{name}_{members}", *words)))
    return EnsembleMemory(many, *peaks)


def render(case: EnsembleCase, times: EnsembleTimes, memory: EnsembleMemory | None) -> str:
    """Return the table, and the figures below it."""
    rows = [
        (f"mpitrain ensemble, {case.ranks} ranks", times.wall_s),
        (f"its members' epochs / {case.ranks} + one start", times.member_s * case.members / case.ranks + times.start_s),
        ("mpitrain ensemble, 1 rank", times.one_rank_wall_s),
        (f"a launch for each ({case.alone} measured)", times.launch_s * case.members),
        *((_baseline_words(case, name), seconds) for name, seconds in times.baselines_s.items()),
    ]
    cells = [
        [name, f"{seconds:.2f}", f"{1e3 * seconds / case.members:.1f}", f"{seconds / times.wall_s:.2f}"]
        for name, seconds in rows
    ]
    title = f"{case.members} networks {case.network.name}, {case.epochs} epochs each"
    figures = times.figures(case)
    lines = [
        f"a member costs {figures['beyond_training_ms_a_member']:.1f} ms of processor time beyond its epochs (network, "
        "folder, files, report)",
    ]
    if memory is not None:
        mib = [f"{value / (1 << 20):.0f}" for value in (memory.imports, memory.one_member, memory.all_members)]
        lines.append(
            f"memory of all ranks (PSS): {mib[0]} MiB without samples, {mib[1]} MiB for one member on "
            f"{memory.num_samples} samples, {mib[2]} MiB for {case.members}: {memory.ratio:.2f} times beyond the first"
        )
    return render_table(title, ["", "s", "ms a member", "times"], cells) + "".join(f"{line}\n" for line in lines)


def _baseline_words(case: EnsembleCase, name: str) -> str:
    baseline, processes = BASELINES[name], 1 if name == "loop" else case.ranks
    where = "" if name == "loop" else f", {processes} processes"
    measured = f"{_MEMBERS_A_PROCESS * processes} x {baseline.epochs or case.epochs} epochs measured"
    return f"{baseline.title}{where} ({measured})"


def as_record(case: EnsembleCase, times: EnsembleTimes, memory: EnsembleMemory | None) -> dict[str, Any]:
    """Return all figures as JSON values."""
    asked = {"network": case.network.name, "members": case.members, "epochs": case.epochs, "ranks": case.ranks}
    found = {"case": asked, "times": asdict(times), "figures": times.figures(case)}
    return found if memory is None else {**found, "memory": {**asdict(memory), "ratio": memory.ratio}}
