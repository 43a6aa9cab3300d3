"""`mpitrain bench ensemble`: an ensemble's time and memory beside those of its members trained one by one."""

from __future__ import annotations

import importlib.util
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mpitrain.bench.ensemble.memory import peak_pss
from mpitrain.bench.output import render_table
from mpitrain.bench.step_cases import Network
from mpitrain.native.program import json_line_of, run_command
from mpitrain.native.toolchain import find_mpirun
from mpitrain.synthetic.history import write_synthetic_history

Say = Callable[[str], None]
_PLAIN_LOOP = [sys.executable, "-m", "mpitrain.bench.ensemble.plain_loop"]
# What plain PyTorch is measured on, of which the whole is computed.
_LOOP_EPOCHS, _LOOP_MEMBERS = 2, 2
_SEED = 0
FEW_MEMBERS = 2
"""How many members have all that an ensemble has, and least of what comes with each."""
# A start varies by more than what is to be seen beside it.
_NUM_STARTS = 3


@dataclass(frozen=True)
class EnsembleCase:
    """What is measured: `members` networks, `epochs` each, on `ranks`; `alone` of them are launched one by one."""

    network: Network
    members: int
    epochs: int
    ranks: int
    alone: int

    @property
    def settings(self) -> list[str]:
        """The settings of the ensemble, and of its members."""
        return [*self.network.settings, f"training.epochs={self.epochs}"]


@dataclass(frozen=True)
class EnsembleTimes:
    """Seconds. `member_s`: one member's epochs with their validation, launched alone on one rank.

    `start_s`: an ensemble of one short member a rank; `launch_s`: one member's whole launch. On one rank `cpu_s` is all
    processor time, `short_cpu_s` that of as many members of one epoch, `few_cpu_s` that of two such. `loop_s` and
    `joblib_s`: all members by plain PyTorch, one after the other and in as many processes as there are ranks.
    """

    wall_s: float
    start_s: float
    member_s: float
    one_rank_wall_s: float
    one_rank_cpu_s: float
    short_cpu_s: float
    few_cpu_s: float
    launch_s: float
    loop_s: float
    joblib_s: float | None

    def figures(self, case: EnsembleCase) -> dict[str, float]:
        """Return what is promised: time over the ideal, over launches, and what a member costs beyond its epochs."""
        ideal_s = self.member_s * case.members / case.ranks + self.start_s
        epoch_s = (self.one_rank_cpu_s - self.short_cpu_s) / (case.members * (case.epochs - 1))
        short_member_s = (self.short_cpu_s - self.few_cpu_s) / (case.members - FEW_MEMBERS)
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
    say(f"{case.members} members on {case.ranks} ranks")
    members = f"ensemble.members={case.members}"
    wall_s, cpu_s = _timed(case.ranks, "ensemble", folder / "many", *words, members)
    short = [*words, "training.epochs=1"]
    start_s, _ = _starts_s(case.ranks, folder / "start", *short, f"ensemble.members={case.ranks}")
    one_rank_s = wall_s
    if case.ranks > 1:
        say(f"{case.members} members on one rank")
        one_rank_s, cpu_s = _timed(1, "ensemble", folder / "one", *words, members)
    _, short_cpu_s = _timed(1, "ensemble", folder / "short", *short, members)
    _, few_cpu_s = _starts_s(1, folder / "few", *short, f"ensemble.members={FEW_MEMBERS}")
    say(f"{case.alone} members launched one by one")
    launches_s, members_s = [], []
    for number in range(case.alone):
        config, alone = folder / f"many/members/{number:04d}/config.yaml", folder / f"alone{number}"
        launches_s.append(_timed(1, "train", alone, str(config))[0])
        members_s.append(_epochs_s(alone))
    say("plain PyTorch")
    loop_s = _plain_s(case, num_samples, None)
    joblib_s = _plain_s(case, num_samples, case.ranks) if importlib.util.find_spec("joblib") else None
    return EnsembleTimes(
        wall_s, start_s, sum(members_s) / len(members_s), one_rank_s, cpu_s, short_cpu_s, few_cpu_s,
        sum(launches_s) / len(launches_s), loop_s, joblib_s,
    )  # fmt: skip


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


def _starts_s(num_ranks: int, folder: Path, *words: str) -> tuple[float, float]:
    """Return the median wall and processor time of a few ensembles."""
    folders = [Path(f"{folder}{number}") for number in range(_NUM_STARTS)]
    walls_s, cpus_s = zip(*(_timed(num_ranks, "ensemble", one, *words) for one in folders), strict=True)
    return statistics.median(walls_s), statistics.median(cpus_s)


def _epochs_s(run: Path) -> float:
    """Return the time of a run's epochs with their validation, without what is written beside them."""
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return sum(float(record["wall_time_s"]) for record in records)


def _plain_s(case: EnsembleCase, num_samples: int, processes: int | None) -> float:
    members = _LOOP_MEMBERS * (processes or 1)
    flags = {"members": members, "epochs": _LOOP_EPOCHS, "samples": num_samples, "network": case.network.name}
    flags |= {} if processes is None else {"processes": processes}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    found = json.loads(json_line_of(run_command([*_PLAIN_LOOP, *words], 1)))["seconds"]
    return float(found) * case.epochs / _LOOP_EPOCHS * case.members / members


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
        (f"a loop over plain PyTorch ({_LOOP_MEMBERS} x {_LOOP_EPOCHS} epochs measured)", times.loop_s),
    ]
    if times.joblib_s is not None:
        rows.append((f"joblib, {case.ranks} processes of plain PyTorch (so too)", times.joblib_s))
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


def as_record(case: EnsembleCase, times: EnsembleTimes, memory: EnsembleMemory | None) -> dict[str, Any]:
    """Return all of it for programs."""
    asked = {"network": case.network.name, "members": case.members, "epochs": case.epochs, "ranks": case.ranks}
    found = {"case": asked, "times": asdict(times), "figures": times.figures(case)}
    return found if memory is None else {**found, "memory": {**asdict(memory), "ratio": memory.ratio}}
