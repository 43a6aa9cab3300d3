"""`run_record.json`: all that is needed to train a run again and to name what differs on the machine that does it.

It is written when the training begins, and again with the result when it has ended.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mpitrain.cluster import package_versions
from mpitrain.cluster.facts import machine_facts, vendor_settings
from mpitrain.comm import Ranks
from mpitrain.data import SampleSource
from mpitrain.durable_files import write_durably
from mpitrain.errors import writing
from mpitrain.observe import RunSummary
from mpitrain.runs.prepared_run import PreparedRun
from mpitrain.runs.reproduction.data_files import FileRecord, record_files
from mpitrain.runs.reproduction.energy import EnergyMeter
from mpitrain.runs.reproduction.stored_record import FORMAT, read_record
from mpitrain.train import RUN, Checkpoint, ClaimedFolder

NAME = "run_record.json"
_RESULTS = (
    "weights_sha256", "epochs", "steps", "train_loss", "validation_loss", "best_epoch", "split", "test_loss",
    "skill_samples",
)  # fmt: skip
_GIT_TIMEOUT_S = 10
_CERTIFICATE = re.compile(r"certificate(-steps-\d+)?\.json")


@dataclass
class RunRecorder:
    """Writer of a run's final record: holds the record of its start and the energy meter. Created on every rank."""

    ranks: Ranks
    path: Path
    record: dict[str, Any]
    energy: EnergyMeter | None

    def end(self, summary: RunSummary, wall_s: float) -> None:
        """Write the record with the run's result, time and energy. Collective. Raises OutputError on all ranks."""
        joules = self.energy.stop() if self.energy is not None else {}
        spent = self.ranks.gather_object((time.process_time(), joules))
        used = {"wall_s": round(wall_s, 3), "cpu_s": round(sum(seconds for seconds, _ in spent), 3)}
        for name in ("cpu", "gpu"):
            shown = [of_node[name] for _, of_node in spent if name in of_node]
            if shown:
                used[f"{name}_energy_j"] = round(sum(shown), 3)
        self.record |= {"ended": now(), "used": used, "result": _result_of(summary)}
        self.ranks.on_root(lambda: _write(self.path, self.record))


def _result_of(summary: RunSummary) -> dict[str, Any]:
    test = None if summary.test is None else summary.test.targets
    skill, test_skill = (
        {one.name: {"units": one.units, "rmse": one.rmse, "bias": one.bias, "r2": one.r2} for one in found or ()}
        for found in (summary.skills, test)
    )
    return {**{name: getattr(summary, name) for name in _RESULTS}, "skill": skill, "test_skill": test_skill}


def begin_record(
    ranks: Ranks, prepared: PreparedRun, source: SampleSource, folder: ClaimedFolder, checkpoint: Checkpoint | None
) -> RunRecorder:  # fmt: skip
    """Write the record of a run that starts, or continues from `checkpoint`. Collective.

    Raises DataError or OutputError on all ranks.
    """
    ranks.starting.now("hashing the data files")
    hashed = record_files(
        ranks, files_of(source, prepared.config.model.initial_weights), prepared.config.output.hash_data
    )
    of_launch = record_of_launch(ranks, folder.run)
    energy = EnergyMeter() if ranks.local_rank == 0 else None
    record = record_of_beginning(ranks, prepared, source, checkpoint, hashed, of_launch)
    ranks.on_root(lambda: _write_beginning(folder.record, record))
    return RunRecorder(ranks, folder.record, record, energy)


def files_of(source: SampleSource, weights: str | None) -> list[Path]:
    """Return the files that a run reads: its data files, then the file of its initial weights if there is one."""
    return [*source.paths, *([] if weights is None else [Path(weights)])]


def record_of_launch(ranks: Ranks, run: str) -> dict[str, Any]:
    """Return the part of a record that all runs of a launch have in common; `run` is its identity. Collective."""
    launch = {RUN: run, "command_line": [sys.executable, *sys.orig_argv[1:]], "working_folder": os.getcwd()}
    return {**launch, **machine_record(ranks)}


def record_of_beginning(
    ranks: Ranks, prepared: PreparedRun, source: SampleSource, checkpoint: Checkpoint | None,
    files: Sequence[FileRecord], of_launch: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Return the record of a run that starts on `ranks`, or continues from `checkpoint`. Not collective."""
    first = source.first_held_out
    held_out = () if first is None else (path for one in source.files if one.first_time >= first for path in one.paths)
    return {
        "format": FORMAT,
        "started": now(),
        "settings": prepared.config.model_dump(mode="json"),
        "code": prepared.config.code_names,
        "decided": dict(prepared.settings),
        "ranks": {"number": ranks.world_size, "nodes": ranks.num_nodes, "launcher": ranks.info.source,
                  "transport": ranks.transport, "backend": ranks.backend},
        "data": list(files),
        "held_out_files": len(tuple(held_out)),
        "first_step": int(checkpoint.state["global_step"]) if checkpoint else 0,
        **of_launch,
    }  # fmt: skip


def _write_beginning(path: Path, record: dict[str, Any]) -> None:
    if record["first_step"] > 0 and path.exists():
        before = read_record(path)
        record["earlier"] = [*before.pop("earlier", []), before]
    _write(path, record)
    with writing(path.parent, "remove its certificates"):
        for one in path.parent.iterdir():  # certificates of an earlier run or state
            if _CERTIFICATE.fullmatch(one.name) and one.is_file():
                one.unlink()


def kinds(record: Mapping[str, Any], key: str) -> list[str]:
    """Return the distinct values of `key` in a record's machines, without empty ones."""
    return list(dict.fromkeys(machine[key] for machine in record["machines"] if machine.get(key)))


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return the commit and the changed files of the repository that contains `folder`; None if there is none."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed_files": [line[3:] for line in (changed or "").splitlines()]}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        command = ["git", "-C", str(folder), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.rstrip("\n") if done.returncode == 0 else None


def machine_record(ranks: Ranks) -> dict[str, Any]:
    """Return what a result's bits may depend on besides settings and data: versions, machines, git. Collective."""
    git, versions = ranks.on_root(lambda: (git_state(Path(__file__).parent), package_versions()))
    return {"versions": versions, "machines": _kinds_of_machines(ranks), "git": git}


def _kinds_of_machines(ranks: Ranks) -> list[dict[str, Any]]:
    """Return each kind of machine once, with its ranks and hosts. Collective."""
    facts = {**machine_facts(os.environ), "settings": vendor_settings(os.environ)}
    kinds: dict[str, dict[str, Any]] = {}
    for rank, (host, of_rank) in enumerate(ranks.gather_object((ranks.host, facts))):
        kind = kinds.setdefault(json.dumps(of_rank), {**of_rank, "ranks": [], "hosts": []})
        kind["ranks"].append(rank)
        if host not in kind["hosts"]:
            kind["hosts"].append(host)
    return list(kinds.values())


def _write(path: Path, record: Mapping[str, Any]) -> None:
    with writing(path, "free space, then --resume"):
        write_durably(path, (json.dumps(record, indent=1) + "\n").encode())


def now() -> str:
    """Return the current time in UTC, in ISO 8601 format."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
