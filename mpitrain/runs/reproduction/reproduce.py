"""`mpitrain reproduce RUN`: train a run again from its own record, and compare the hash of the weights."""

from __future__ import annotations

import glob
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ValidationError

from mpitrain.comm import Ranks
from mpitrain.config import RunConfig, TrainingSection
from mpitrain.data import expand_paths
from mpitrain.errors import LaunchError, UserError
from mpitrain.runs.beginning import TrainRequest
from mpitrain.runs.reproduction.data_files import check_files
from mpitrain.runs.reproduction.record import NAME, kinds, machine_record
from mpitrain.runs.reproduction.stored_record import read_record
from mpitrain.runs.train_run import train
from mpitrain.train import is_plain_name, refuse_code, settings_of_record
from mpitrain.train.run_folder import next_free

NOT_EQUAL = 1
_FACTS = {
    "cpu": "CPU",
    "cpu_capability": "vector instructions that PyTorch uses",
    "mpi_library": "MPI library",
    "compiler": "compiler",
    "settings": "variables that choose instructions",
    "system": "system",
}
# Lines that begin with these name facts that can change the bits; the others are reported for completeness.
_DECIDING = ("torch", "numpy", "CPU", "vector instructions", "variables", "mpitrain", "git", "compiler")


@dataclass(frozen=True)
class ReproduceRequest:
    """The run's folder, and the folder to train it in again (None: RUN-reproduced, or the next free one).

    `data` are the present paths and patterns of its data files; by default as recorded, or in the run folder.
    """

    run: Path
    output: Path | None = None
    trust_code: bool = False
    data: tuple[str, ...] = ()


def reproduce(ranks: Ranks, request: ReproduceRequest) -> int:
    """Train a run again, print whether the weights are equal, and return 0 if they are, otherwise 1. Collective.

    Raises UserError or DataError on all ranks if the run cannot be trained again: it has no record, has not ended, or a
    data file has changed. Raises LaunchError for a number of ranks that the run does not allow.
    """
    moved = ranks.on_root(lambda: expand_paths(request.data) if request.data else ())
    recorded = ranks.on_root(lambda: RecordedRun.read(request.run, request.trust_code, moved))
    record = recorded.record
    ranks.on_all_ranks(lambda: recorded.check_ranks(ranks.world_size))
    ranks.starting.now("comparing the data files with the record")
    check_files(ranks, record["data"])
    if kinds(record, "cpu_capability"):
        # The instructions that PyTorch uses are known only once it is loaded; the training loads it anyway.
        ranks.on_all_ranks(lambda: importlib.import_module("torch"))
    differing = differences(record, machine_record(ranks))
    ranks.say(*(f"differs: {line}" for line in differing), error=True)
    folder = ranks.on_root(lambda: str(_folder(request)))
    config = ranks.on_all_ranks(lambda: recorded.settings_in(folder))
    ranks.on_all_ranks(lambda: refuse_code(request.run / NAME, config, request.trust_code))
    train(ranks, TrainRequest(config=config, trust_code=request.trust_code))
    return ranks.on_root(lambda: _verdict(ranks, record, read_record(Path(folder) / NAME), differing))


@dataclass(frozen=True)
class RecordedRun:
    """A run that has ended, read from its record, to be trained again."""

    RESUMED: ClassVar[str] = "the run was resumed: a setting may have changed in between (see `earlier` in its record)"
    """The reason why training from the record alone may give other weights, if the record has `earlier` ones."""

    folder: Path
    record: dict[str, Any]
    trust_code: bool

    @classmethod
    def read(cls, folder: Path, trust_code: bool, moved: Sequence[Path] = ()) -> RecordedRun:
        """Return the run in a folder, whose data files are now at `moved`, as recorded, or in the folder.

        Raises UserError if it has no record or has not ended, or if the number of files in `moved` differs.
        """
        record = read_record(folder / NAME)
        if record.get("result") is None:
            raise UserError(f"{folder}: the run has not ended, so there is nothing to compare with; --resume it first")
        return cls(folder, {**record, "data": _present_files(folder, record, moved)}, trust_code)

    @cached_property
    def config(self) -> RunConfig:
        """The run's settings. Raises UserError if they are invalid or name code that is not trusted."""
        return settings_of_record(self.folder / NAME, self.record["settings"], self.trust_code)

    def check_ranks(self, world_size: int) -> None:
        """Raise LaunchError if the run cannot be trained again on `world_size` ranks."""
        number = self.record["ranks"]["number"]
        if self.config.semantics == "reference" and world_size != number:
            raise LaunchError(
                f"semantics=reference: the result depends on the number of ranks, which was {number} and is "
                f"{world_size} here; start with mpirun -np {number}"
            )
        most = self.config.training.virtual_ranks and self.record["decided"].get("training.virtual_ranks")
        if self.config.semantics != "reference" and isinstance(most, int) and world_size > most:
            raise LaunchError(f"the run has {most} virtual ranks, too few for {world_size} ranks; start at most {most}")

    def settings_in(self, folder: str) -> RunConfig:
        """Return the settings that train the run again in `folder`, on any number of ranks.

        Raises UserError if other facts in the record do not fit its settings.
        """
        config, changed = self.config, _changed_data(self.config, self.record)
        decided = _decided(config.semantics, config.training, self.record["decided"])
        changed["training"] = {"max_steps": None} | decided
        model_file = Path(config.output.model_file).name
        changed["output"] = {"model_dir": folder, "model_file": model_file if is_plain_name(model_file) else "model.pt"}
        sections = {name: getattr(config, name).model_dump() | values for name, values in changed.items()}
        # Without prediction and tracking, which would overwrite those of the original run.
        try:
            return RunConfig.model_validate({**config.model_dump(), **sections, "prediction": {}, "tracking": {}})
        except ValidationError as error:
            raise UserError(f"{NAME}: its facts about the run do not fit its settings; train the run again") from error


def _present_files(folder: Path, record: Mapping[str, Any], moved: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the record of each file with its present path: in `moved`, as recorded, or in the run folder."""
    files, model = record["data"], record["settings"].get("model")
    num_files = len(files) - int(isinstance(model, dict) and model.get("initial_weights") is not None)
    if moved and len(moved) != num_files:
        raise UserError(f"{len(moved)} data files are named, the run read {num_files}; name all, in order")
    paths = [*moved, *(Path(file["path"]) for file in files[len(moved) :])]
    copies = [folder / path.name for path in paths]
    exists = os.path.exists  # does not raise if access is denied
    found = [copy if exists(copy) and not exists(path) else path for path, copy in zip(paths, copies, strict=True)]
    return [{**file, "path": str(path.absolute())} for file, path in zip(files, found, strict=True)]


def _changed_data(config: RunConfig, record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    changed: dict[str, dict[str, Any]] = {"data": {}}
    if config.data.data_path is None:
        changed["data"] = {"max_patterns": config.most_samples, "num_samples": None}
    files, num_held_out = [file["path"] for file in record["data"]], record["held_out_files"]
    if config.model.initial_weights is not None:
        changed["model"] = {"initial_weights": "".join(files[-1:])}
        files = files[:-1]
    entries = config.data.validation_entries
    if not num_held_out and not any(map(glob.has_magic, entries)):  # records of earlier versions lack it
        num_held_out = len(dict.fromkeys(entries))
    if bool(entries) != bool(num_held_out) or num_held_out >= len(files):
        raise UserError(f"{NAME}: does not name the files that the run was trained on; train it again")
    changed["data"]["data_path"] = files[: len(files) - num_held_out]
    if num_held_out:
        changed["data"]["validation_path"] = files[len(files) - num_held_out :]
    if config.data.test_entries:  # the test does not change the weights
        changed["data"] |= {"test_path": None, "test_split": 0.0}
    return changed


def _decided(semantics: str, training: TrainingSection, decided: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded values of settings that a run chooses itself; none with `semantics=reference`."""
    if semantics == "reference":
        return {}
    values = {name: decided.get(f"training.{name}") for name in ("global_batch_size", "engine")}
    # Set by runs of earlier versions; otherwise it follows from the batch.
    named = training.virtual_ranks
    return values | {"batch_size": None, "virtual_ranks": named and decided.get("training.virtual_ranks")}


def _folder(request: ReproduceRequest) -> Path:
    if request.output is not None:
        return request.output
    return next_free(request.run.with_name(f"{request.run.resolve().name}-reproduced"))


def _verdict(ranks: Ranks, record: Mapping[str, Any], again: Mapping[str, Any], differing: list[str]) -> int:
    then, now = record["result"]["weights_sha256"], again["result"]["weights_sha256"]
    number = record["ranks"]["number"]
    runs = f"{number} rank{'s' if number > 1 else ''} then, {ranks.world_size} here"
    if then == now:
        despite = f", although these differ: {'; '.join(differing)}" if differing else ""
        ranks.say(f"reproduced: equal, SHA-256 {now[:12]} ({runs}){despite}")
        return 0
    ranks.say(f"reproduced: NOT equal, SHA-256 {then[:12]} then, {now[:12]} here ({runs}); {_cause(record, differing)}")
    return NOT_EQUAL


def _cause(record: Mapping[str, Any], differing: list[str]) -> str:
    if record["decided"].get("training.reduction") == "any":
        return "training.reduction=any promises equality to rounding only"
    if record.get("earlier"):
        return RecordedRun.RESUMED
    causes = deciding(differing)
    if causes:
        return f"these can change bits and differ: {'; '.join(causes)}"
    return "nothing that is known to change bits differs: please report it, with both records"


def differences(then: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return a line for each fact that differs between two records, first those that can change bits."""
    lines = [*_versions(then, here), *_machines(then, here), *_git(then, here)]
    return sorted(lines, key=lambda line: not line.startswith(_DECIDING))


def deciding(lines: list[str]) -> list[str]:
    """Return the lines about facts that can change bits."""
    return [line for line in lines if line.startswith(_DECIDING)]


def _versions(then: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*then["versions"], *here["versions"]}):
        before, now = then["versions"].get(name, ""), here["versions"].get(name, "")
        if before != now:
            yield f"{name} {before or '(none)'} then, {now or '(none)'} here"


def _machines(then: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    for key, label in _FACTS.items():
        before, now = sorted(kinds(then, key)), sorted(kinds(here, key))
        if before != now:
            yield f"{label}: {' and '.join(before) or '(none)'} then, {' and '.join(now) or '(none)'} here"


def _git(then: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    before, now = then.get("git"), here.get("git")
    if before != now:
        yield f"git: {_state(before)} then, {_state(now)} here"


def _state(git: Mapping[str, Any] | None) -> str:
    if git is None:
        return "no repository"
    changed = len(git["changed_files"])
    return str(git["commit"])[:12] + (f" with {changed} changed files" if changed else "")
