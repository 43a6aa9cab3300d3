"""`run_record.json`: all that is needed to train a run again and to say what differs where that is done.

It is written when the training begins, and again with the result when it has ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mpitrain.comm.ranks import Ranks
from mpitrain.data.selection.source import SampleSource
from mpitrain.durable_files import write_durably
from mpitrain.errors import OutputError, UserError
from mpitrain.observe.summary import RunSummary
from mpitrain.runs.prepared_run import PreparedRun
from mpitrain.runs.reproduction.data_files import record_files
from mpitrain.runs.reproduction.energy import EnergyMeter
from mpitrain.runs.reproduction.facts import machine_facts, package_versions, vendor_settings
from mpitrain.train.checkpoint.store import Checkpoint
from mpitrain.train.run_folder import RunFolder

FORMAT = 1
NAME = "run_record.json"
_RESULTS = ("weights_sha256", "epochs", "steps", "train_loss", "validation_loss", "best_epoch", "split", "test_loss")
_GIT_TIMEOUT_S = 10


@dataclass
class RunRecorder:
    """Keeps what a run's record needs from its beginning to its end. Made on every rank."""

    ranks: Ranks
    path: Path
    record: dict[str, Any]
    energy: EnergyMeter | None

    def end(self, summary: RunSummary, wall_s: float) -> None:
        """Write the record with what the run reached and what it took. Collective. Raises OutputError, on all ranks."""
        joules = self.energy.stop() if self.energy is not None else {}
        spent = self.ranks.gather_object((time.process_time(), joules))
        used = {"wall_s": round(wall_s, 3), "cpu_s": round(sum(seconds for seconds, _ in spent), 3)}
        for name in ("cpu", "gpu"):
            shown = [of_node[name] for _, of_node in spent if name in of_node]
            if shown:
                used[f"{name}_energy_j"] = round(sum(shown), 3)
        self.record |= {"ended": _now(), "used": used, "result": {name: getattr(summary, name) for name in _RESULTS}}
        self.ranks.on_root(lambda: _write(self.path, self.record))


def begin_record(
    ranks: Ranks, prepared: PreparedRun, source: SampleSource, folder: RunFolder, checkpoint: Checkpoint | None
) -> RunRecorder:
    """Write the record of a run that begins, or goes on from `checkpoint`. Collective.

    Raises DataError or OutputError, on all ranks.
    """
    ranks.starting.now("hashing the data files")
    config, files = prepared.config, [file.path for file in source.files]
    if config.model.initial_weights is not None:
        files.append(Path(config.model.initial_weights))
    hashed = record_files(ranks, files, config.output.hash_data)
    of_machine = machine_record(ranks)
    energy = EnergyMeter() if ranks.local_rank == 0 else None
    record = {
        "format": FORMAT,
        "started": _now(),
        "command_line": [sys.executable, *sys.orig_argv[1:]],
        "working_folder": os.getcwd(),
        "settings": config.model_dump(mode="json"),
        "decided": dict(prepared.settings),
        "ranks": {"number": ranks.world_size, "nodes": ranks.num_nodes, "launcher": ranks.info.source,
                  "transport": ranks.transport, "backend": ranks.backend},
        "data": hashed,
        "first_step": int(checkpoint.state["global_step"]) if checkpoint else 0,
        **of_machine,
    }  # fmt: skip
    ranks.on_root(lambda: _write_beginning(folder.record, record))
    return RunRecorder(ranks, folder.record, record, energy)


def _write_beginning(path: Path, record: dict[str, Any]) -> None:
    if record["first_step"] > 0 and path.exists():
        before = read_record(path)
        record["earlier"] = [*before.pop("earlier", []), before]
    _write(path, record)


def read_record(path: Path) -> dict[str, Any]:
    """Return a record. Raises UserError where there is none that can be read."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["format"] != FORMAT:
            raise UserError(f"{path}: written in form {record['format']}, this mpitrain reads {FORMAT}; use that one")
    except (OSError, ValueError, TypeError, KeyError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no record"
        raise UserError(f"{path}: cannot be read ({why}); runs have one since it is written") from error
    return dict(record)


def kinds(record: Mapping[str, Any], key: str) -> list[str]:
    """Return what a record's machines have under `key`, each once, without those that have nothing."""
    return list(dict.fromkeys(machine[key] for machine in record["machines"] if machine.get(key)))


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return commit and whether files have changed of the repository that `folder` is in; None where it is in none."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed_files": [line[3:] for line in (changed or "").splitlines()]}


def _git(folder: Path, *words: str) -> str | None:
    try:
        command = ["git", "-C", str(folder), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.rstrip("\n") if done.returncode == 0 else None


def machine_record(ranks: Ranks) -> dict[str, Any]:
    """Return what the bits may depend on besides settings and data: versions, machines, git state. Collective."""
    git = ranks.on_root(lambda: git_state(Path(__file__).parent))
    return {"versions": package_versions(), "machines": _kinds_of_machines(ranks), "git": git}


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
    try:
        write_durably(path, (json.dumps(record, indent=1) + "\n").encode())
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror}); free space, then --resume") from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
