"""Run folders as a stranger may send them: each would run code, write elsewhere, hang, or end in a traceback."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

CODE = "code_of_strangers:make"
Spoil = Callable[[Path, Path], None]
"""Spoils a copy of a run's folder; the second folder is the victim's, which must stay as it is."""


def make_victim(folder: Path) -> Path:
    """Files of the user that no command may touch: notes, and what looks like checkpoints of another run."""
    for name in ("notes.txt", "logs/rank-0000.log", "step-00000001/commit.json", "step-00000002/mine.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"mine: {name}\n")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of each file by its name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _record(change: Callable[[dict[str, Any], Path], object]) -> Spoil:
    def spoil(run: Path, victim: Path) -> None:
        record = json.loads((run / "run_record.json").read_text())
        change(record, victim)
        (run / "run_record.json").write_text(json.dumps(record))

    return spoil


def _settings(old: str, new: str) -> Spoil:
    def spoil(run: Path, victim: Path) -> None:
        text = (run / "config.yaml").read_text()
        assert old in text, "else nothing is spoilt"
        (run / "config.yaml").write_text(text.replace(old, new.replace("VICTIM", str(victim)), 1))

    return spoil


def _link(name: str, target: str) -> Spoil:
    def spoil(run: Path, victim: Path) -> None:
        path = run / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(victim / target)

    return spoil


def _pipe(name: str) -> Spoil:
    def spoil(run: Path, _: Path) -> None:
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)

    return spoil


def _text(name: str, text: str) -> Spoil:
    return lambda run, _: (run / name).write_text(text) and None


def _linked_step(run: Path, victim: Path) -> None:
    newest = max((run / "checkpoints").glob("step-*"))
    shutil.rmtree(newest)
    newest.symlink_to(victim / "step-00000001")


def _manifests(change: Callable[[bytes], bytes]) -> Spoil:
    """Change each checkpoint's manifest, and make its hashes anew."""

    def spoil(run: Path, _: Path) -> None:
        from mpitrain.train.checkpoint.format import COMMIT, MANIFEST, encode_commit

        for manifest in run.glob(f"checkpoints/*-*/{MANIFEST}"):
            manifest.write_bytes(change(manifest.read_bytes()))
            (manifest.parent / COMMIT).write_bytes(encode_commit(manifest.read_bytes()))

    return spoil


def _changed_manifest(key: str, **values: Any) -> Spoil:
    def change(text: bytes) -> bytes:
        manifest = json.loads(text)
        manifest[key] = {**manifest[key], **values} if values else 3
        return json.dumps(manifest).encode()

    return _manifests(change)


def _old_claim(run: Path, victim: Path) -> None:
    claim = run / ".claim-000009.json"
    claim.symlink_to(victim / "notes.txt")
    os.utime(claim, (0, 0), follow_symlinks=False)


def _data_is_a_pipe(run: Path, victim: Path) -> None:
    os.mkfifo(run / "endless.nc")
    _record(lambda record, _: record["data"][0].update(path=str(run / "endless.nc")))(run, victim)


WRITE = ("resume", "settings", "settings resume")
"""The folder, or its own settings file, given to a command that trains."""
READ = ("predict", "export", "report")
ALL = (*READ, "crate", "reproduce", *WRITE)


def _leading_out(name: str, target: str, *settings: tuple[str, str]) -> Spoil:
    """A link in a folder that the settings have a library write to."""

    def spoil(run: Path, victim: Path) -> None:
        _link(name, target)(run, victim)
        for old, new in settings:
            _settings(old, new)(run, victim)

    return spoil


def _new_member(name: str, make: Callable[[Path], object]) -> Spoil:
    """A file in the folder of a member that the command adds."""

    def spoil(run: Path, victim: Path) -> None:
        (run / "members" / "0002").mkdir()
        make(run / "members" / "0002" / name)

    return spoil


_NO_MODEL = "model:\n  name: null\n"

# name -> how it is made, and the commands that it is aimed at
HOSTILE_RUNS: dict[str, tuple[Spoil, tuple[str, ...]]] = {
    "a dotted key names code": (_record(lambda it, _: it["settings"].update({"model.name": CODE})), ("reproduce",)),
    "a dotted key names a file": (
        _record(lambda it, victim: it["settings"].update({"output.model_file": str(victim / "notes.txt")})),
        ("reproduce",),
    ),
    "a key that is a whole setting": (
        _record(lambda it, victim: it["settings"].update({f"output.model_file={victim}/notes.txt #": 1})),
        ("reproduce",),
    ),
    "recorded code": (_record(lambda it, _: it["settings"]["model"].update(name=CODE)), ("reproduce",)),
    "a recorded engine is code": (
        _record(lambda it, _: it["decided"].update({"training.engine": CODE})),
        ("reproduce",),
    ),
    "a recorded file beside": (
        _record(lambda it, victim: it["settings"]["output"].update(model_file=f"{victim}/..")),
        ("reproduce",),
    ),
    "recorded data is a pipe": (_data_is_a_pipe, ("reproduce",)),
    "a record without a model": (_record(lambda it, _: it["settings"].pop("model")), ("reproduce", "crate")),
    "a record of lists": (_record(lambda it, _: it.update(machines=[[]], ranks=[], git=3)), ("reproduce", "crate")),
    "a record of a name that no file can have": (
        _record(lambda it, _: it["data"][0].update(path="9" * 5000)),
        ("reproduce", "crate"),
    ),
    "a record nested deeply": (_text("run_record.json", "[" * 200_000), ("reproduce", "crate")),
    "a record is a pipe": (_pipe("run_record.json"), ("reproduce", "crate")),
    "settings name code": (_settings(_NO_MODEL, f"model:\n  name: {CODE}\n"), (*READ, *WRITE)),
    "a dotted setting names code": (_settings("seed:", f"model.name: {CODE}\nseed:"), (*READ, *WRITE)),
    "settings name a model file": (_settings("model_file: model.pt", "model_file: VICTIM/notes.txt"), WRITE),
    "settings name a folder": (_settings("model_dir:", "model_dir: VICTIM #"), WRITE),
    "settings name a prediction": (
        _settings("output_filename: null", "output_filename: VICTIM/notes.txt"),
        (*READ, "resume"),
    ),
    "settings name a tracker's folder": (
        _settings("mlflow: false\n  mlflow_uri: null", "mlflow: true\n  mlflow_uri: VICTIM"),
        WRITE,
    ),
    "settings are a pipe": (_pipe("config.yaml"), (*READ, "resume", "settings")),
    "settings nested deeply": (_text("config.yaml", "model: " + "[" * 100_000), (*READ, "resume")),
    "linked logs": (_link("logs", "logs"), WRITE),
    "a linked log": (_link("logs/rank-0000.log", "notes.txt"), WRITE),
    "a linked probe": (_link("logs/.probe", "notes.txt"), WRITE),
    "linked metrics": (_link("metrics.jsonl", "notes.txt"), ("report", "resume")),
    "linked checkpoints": (_link("checkpoints", "."), (*READ, "resume")),
    "a linked checkpoint": (_linked_step, ("export", "report", "resume")),
    "a linked crate": (_link("ro-crate-metadata.json", "notes.txt"), ("crate",)),
    "a linked report": (_link("report.html", "notes.txt"), ("report",)),
    "a linked model": (_link("model.pt", "notes.txt"), ("predict", "resume")),
    "linked statistics": (_link("statistics.json", "notes.txt"), ("export", "resume")),
    "statistics of other kinds": (
        _text("statistics.json", '{"variables": [{"name": "tair_h", "minimum": []}]}'),
        ("export c",),
    ),
    "manifests without settings": (_changed_manifest("settings"), ("export", "report", "resume")),
    "manifests with a text for a step": (_changed_manifest("state", global_step="x"), ("export", "report", "resume")),
    "manifests with many virtual ranks": (
        _changed_manifest("settings", **{"training.virtual_ranks": 2**62}),
        ("resume",),
    ),
    "manifests nested deeply": (_manifests(lambda _: b"[" * 200_000), ("export", "report", "resume")),
    "a linked claim": (_old_claim, ("resume",)),
    "a linked folder of a tracker": (
        _leading_out("tracking/tensorboard", ".", ("tensorboard: false", "tensorboard: true")),
        WRITE,
    ),
    "a linked folder of another tracker": (
        _leading_out("tracking/mlruns", ".", ("mlflow: false", "mlflow: true")),
        WRITE,
    ),
    "metrics nested deeply": (_text("metrics.jsonl", "[" * 200_000 + "\n"), ("report", "resume")),
    "metrics with a wrong timing": (_text("metrics.jsonl", '{"epoch": 1, "timing": 5}\n'), ("report",)),
    "metrics of other kinds": (_text("metrics.jsonl", '{"epoch": [], "train_loss": "x"}\n'), ("report", "resume")),
}  # fmt: skip

_MEMBERS = ("predict", "export")
HOSTILE_ENSEMBLES: dict[str, tuple[Spoil, tuple[str, ...]]] = {
    "members elsewhere": (_text("ensemble.json", '{"members": ["../../victim", "/"]}'), _MEMBERS),
    "members nested deeply": (_text("ensemble.json", "[" * 200_000), _MEMBERS),
    "members that are none": (_text("ensemble.json", '{"members": 3}'), _MEMBERS),
    "varied settings name code": (
        _settings("grid: {}", f"grid: {{model.name: [{CODE}, mlp]}}"),
        ("ensemble",),
    ),
    "varied settings name a file": (
        _settings("grid: {}", "grid: {training.model output: [VICTIM/notes.txt]}"),
        ("ensemble",),
    ),
    "the ensemble's settings name code": (_settings(_NO_MODEL, f"model:\n  name: {CODE}\n"), ("ensemble", *_MEMBERS)),
    "linked members": (_link("members", "."), ("ensemble",)),
    "a linked member": (_link("members/0001", "."), ("ensemble",)),
    "linked logs of an ensemble": (_link("logs", "logs"), ("ensemble",)),
    "a linked model of a member": (_new_member("model.pt", lambda path: path.symlink_to("../../notes")), ("ensemble",)),
    "a member's settings are a pipe": (_new_member("config.yaml", os.mkfifo), ("ensemble",)),
    "a member's statistics are a pipe": (_new_member("normalization.model.pt", os.mkfifo), ("ensemble",)),
    "a member's outcome is a pipe": (_new_member("member.json", os.mkfifo), ("ensemble",)),
    "a member's failures are pipes": (
        _new_member("", lambda path: [os.mkfifo(path / f"failed_on_some_ranks-{one}.txt") for one in (1, 2, 3, 4)]),
        ("ensemble",),
    ),
    "an outcome of another member": (
        _text("members/0000/member.json", '{"number": 99, "status": "done"}\n'),
        ("ensemble",),
    ),
    "an outcome of other kinds": (
        _text("members/0000/member.json", '{"number": "0", "rung": [], "status": "done"}\n'),
        ("ensemble",),
    ),
}
