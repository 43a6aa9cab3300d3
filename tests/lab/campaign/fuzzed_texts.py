"""Whole texts of each kind in a run folder, changes to what they say drawn by a seed, and what reads each of them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mpitrain.config import load_run_config, render_yaml
from mpitrain.ensemble.outcome import Outcome, read_outcome
from mpitrain.inference.ensemble import member_folders
from mpitrain.models.files.named_tensors import to_safetensors
from mpitrain.models.files.own_file import _digest_of
from mpitrain.models.files.stored_network import load_network
from mpitrain.observe import report
from mpitrain.observe.metrics_file import read_metrics
from mpitrain.runs.reproduction.crate import write_crate
from mpitrain.runs.reproduction.reproduce import RecordedRun, differences
from mpitrain.runs.reproduction.stored_record import FORMAT, read_record
from mpitrain.train.checkpoint.format import COMMIT, MANIFEST, TENSORS, encode_checkpoint, encode_commit
from mpitrain.train.checkpoint.store import CheckpointStore, load_checkpoint
from mpitrain.train.folder.launch import describe_launch, read_launch
from mpitrain.train.folder.settings import load_settings_to_resume
from mpitrain.train.run_folder import RunFolder

# What a reader may take at its word.
_ODD: tuple[Any, ...] = (
    None, True, -1, 0, 2**70, -1.5, 1e308, float("nan"), "", "x", "a\nb\x1b[31m", "../../x", "evil:make", "9" * 5000,
    [], {}, [[]], {"": None}, [None] * 3, "NESTED",
)  # fmt: skip
_TOKENS = (b"0", b"[", b"]", b"{", b"}", b'"', b":", b",", b"&a ", b"*a", b"<<: ", b"!!python/object:os.system ", b"- ",
           b"\n", b"\xff", b"\x00", b"null", b"1e999", b"? ", b"|", b"%", b"\t", b"[[[[[[[[")  # fmt: skip


def _changed_value(value: Any, draw: random.Random) -> Any:
    """Return the value with one place of it changed: another value, one key more or less, or one twice."""
    inside = isinstance(value, dict | list) and len(value) > 0
    if not inside or draw.random() < 0.15:
        return draw.choice(_ODD)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    copy, key, chance = value.copy(), draw.choice(keys), draw.random()
    if chance < 0.1:
        del copy[key]
    elif chance < 0.2 and isinstance(copy, dict):
        copy[draw.choice(["", "model.name", "output.model_file=x #", "0", str(key) + " "])] = draw.choice(_ODD)
    elif chance < 0.2:
        copy.append(copy[key])
    else:
        copy[key] = _changed_value(copy[key], draw)
    return copy


def _as_json(value: Any) -> bytes:
    return json.dumps(value).replace('"NESTED"', "[" * 100_000).encode()


def _changed_bytes(text: bytes, draw: random.Random) -> bytes:
    for _ in range(draw.randint(1, 3)):
        start = draw.randrange(len(text) + 1)
        end = min(len(text), start + draw.choice([0, 0, 1, 4, 40]))
        text = text[:start] + draw.choice(_TOKENS) + text[end:]
    return text


def changed(text: bytes, seed: int) -> bytes:
    """Return the text with what it says changed, or its bytes: each line of JSON is a value, else all of it is one."""
    draw = random.Random(seed)
    try:
        if draw.random() < 0.3:
            return _changed_bytes(text, draw)
        return _as_json(_changed_value(json.loads(text), draw))
    except ValueError:
        pass
    lines = text.splitlines()
    number = draw.randrange(len(lines))
    try:
        lines[number] = _as_json(_changed_value(json.loads(lines[number]), draw))
    except ValueError:
        return _changed_bytes(text, draw)
    return b"\n".join(lines) + b"\n"


def _read_record(path: Path) -> None:
    record = read_record(path)
    RecordedRun(path.parent, record, False).settings_in("again")
    differences(record, {"versions": {}, "machines": [], "git": None})


def _read_checkpoint(path: Path) -> None:
    # Whoever changes a manifest on purpose makes its hashes anew.
    (path.parent / COMMIT).write_bytes(encode_commit(path.read_bytes()))
    load_checkpoint(path.parent)
    CheckpointStore(path.parent.parent).load_latest()


def _read_metrics(path: Path) -> None:
    records = [record for record in read_metrics(path) if "test_loss" not in record]
    if records:
        report.write_report(path.parent, {"run_folder": "run", "epochs": records[-1].get("epoch")})


def _read_own_model(path: Path) -> None:
    # Whoever changes a model's texts on purpose makes its hash anew.
    known = _own_texts() | {path.stem: path.read_text(errors="replace")}
    content = to_safetensors(_TENSORS, known | {"sha256": _digest_of(_TENSORS, known)})
    path.with_name("model.safetensors").write_bytes(content)
    found = load_network(path.with_name("model.safetensors"))
    assert all(text.isprintable() for texts in astuple(found.description) for text in texts)


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "record": ("run_record.json", _read_record),
    "crate": ("run_record.json", lambda path: write_crate(path.parent)),
    "settings": ("config.yaml", lambda path: load_settings_to_resume(RunFolder(path.parent), False)),
    "metrics": ("metrics.jsonl", _read_metrics),
    "manifest": (f"checkpoints/step-00000001/{MANIFEST}", _read_checkpoint),
    "description": ("description.json", _read_own_model),
    "network": ("network.json", _read_own_model),
    "members": ("ensemble.json", lambda path: member_folders(path.parent)),
    "outcome": ("member.json", lambda path: read_outcome(path.parent)),
    "claim": (".claim-000001.json", read_launch),
    "origin": ("run_record.json", lambda path: RunFolder(path.parent).note_of_another_run(path, "x")),
}
"""By kind: the file, and what reads it; each raises an MpitrainError or nothing."""


_TENSORS = {name: np.ones(shape, "f4") for name, shape in {
    "fc1.weight": (3, 2), "fc1.bias": (3,), "fc2.weight": (1, 3), "fc2.bias": (1,), "input_mean": (2,),
    "input_std": (2,)}.items()}  # fmt: skip
_TIMING = {
    "steps": 4, "step_s": 3e-5, "samples_per_s": 2e6, "samples_per_s_per_rank": 2e6,
    "shares": {"computing": 0.9, "reading": 0.1, "communicating": 0.0, "waiting": 0.0},
    "ranks": {"computing": [3e-5], "reading": [6e-7], "communicating": [0.0], "waiting": [0.0], "memory_mib": [314.0]},
}  # fmt: skip


def _record() -> dict[str, Any]:
    settings = load_run_config(None, ["data.data_path=a.nc", "training.virtual_ranks=8"]).config.model_dump(mode="json")
    machine = {"cpu": "a", "cpu_capability": "b", "system": "c", "mpi_library": "d", "compiler": "e", "settings": "f=1",
               "ranks": [0], "hosts": ["h"]}  # fmt: skip
    return {
        "format": FORMAT,
        "run": "0123456789abcdef",
        "started": "2026-11-24T00:00:00+00:00",
        "ended": "2026-11-24T00:01:00+00:00",
        "command_line": ["python", "-m", "mpitrain"],
        "working_folder": "/nowhere",
        "settings": settings,
        "decided": {"training.engine": "eager", "training.global_batch_size": 64, "training.virtual_ranks": 8},
        "ranks": {"number": 1, "nodes": 1, "launcher": "MPI"},
        "data": [{"path": "a.nc", "bytes": 1, "sha256": "0" * 64}],
        "versions": {"torch": "2.13.0"},
        "machines": [machine],
        "git": {"commit": "0" * 40, "changed_files": ["a"]},
        "used": {"wall_s": 1.0},
        "result": {"weights_sha256": "0" * 64, "epochs": 1, "steps": 4, "skill": {}},
        "earlier": [{"run": "fedcba9876543210"}],
    }


def _own_texts() -> dict[str, str]:
    names = {
        "input_names": ["a", "b"],
        "target_names": ["y"],
        "input_ranges": ["0 1", "-1e3 2.5"],
        "read_units": ["u=m"],
    }
    model = {"name": "icenet", "hidden_size": 3}
    record = {"model": model, "num_inputs": 2, "num_outputs": 1, "dtype": "float32", "engine": "eager", "run": "0" * 16}
    return {"description": json.dumps(names), "network": json.dumps(record)}


def write_texts(folder: Path) -> None:
    """Write a whole text of each kind into `folder`."""
    (folder / "run_record.json").write_text(json.dumps(_record()))
    (folder / "config.yaml").write_text(render_yaml(load_run_config(None, ["ensemble.members=2"]).config))
    lines = [{"epoch": one, "step": 4 * one, "train_loss": 0.1, "validation_loss": 0.2, "learning_rate": 1e-3,
              "wall_time_s": 1.0, "timing": _TIMING} for one in (1, 2)]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    checkpoint = folder / "checkpoints" / "step-00000001"
    checkpoint.mkdir(parents=True)
    tensors, manifest = encode_checkpoint({"model.weight": torch.zeros(3)}, {"global_step": 1, "epoch": 1}, {"seed": 1})
    for name, content in ((TENSORS, tensors), (MANIFEST, manifest), (COMMIT, encode_commit(manifest))):
        (checkpoint / name).write_bytes(content)
    (folder / "ensemble.json").write_text('{"members": ["0000", "0001"]}\n')
    (folder / "member.json").write_text(Outcome(0, "done", 3, 0.1, 0.1, 0.2, 2, "0" * 64).to_json() + "\n")
    for name, text in _own_texts().items():
        (folder / f"{name}.json").write_text(text)
    (folder / ".claim-000001.json").write_bytes(describe_launch(folder, {}).to_json())
