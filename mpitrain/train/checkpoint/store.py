"""Checkpoints that are whole or refused: safetensors, a manifest of SHA-256 hashes, and a commit record written last.

checkpoints/step-00000120/tensors.safetensors   the numbers; no pickle anywhere
checkpoints/step-00000120/manifest.json         what they mean, one hash a tensor and one of the whole file
checkpoints/step-00000120/commit.json           the manifest's hash and its own: without it nothing was saved
checkpoints/best-00000100/...                   the best validated weights so far
checkpoints/latest, checkpoints/best            links to the newest of each kind, for people and scripts
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpitrain.comm import Array
from mpitrain.config import FIRST_RULES
from mpitrain.durable_files import sync_file, sync_folder, write_and_sync, write_durably, write_whole
from mpitrain.errors import CheckpointError, OutputError
from mpitrain.train.checkpoint.format import (
    COMMIT,
    MANIFEST,
    TENSORS,
    encode_checkpoint,
    encode_commit,
    read_checkpoint,
)

RULES_KEY, BLOCKS_KEY, GROUP_KEY, TEST_KEY = "data.rules", "data.split_blocks", "data.group", "data.test_split"
# What checkpoints of before stand for, which do not tell it.
OF_BEFORE = {RULES_KEY: FIRST_RULES, TEST_KEY: 0.0}
AVERAGE_KEY = "training.average"
NUM_NEWEST_KEPT = 3
# What people call copies of theirs, such as step-backup, is none of the store's.
_NUMBER = re.compile(r"\d{8,}")


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint: its `tensors` by name, and `state` and `settings` as they were given to `save`."""

    path: Path
    tensors: dict[str, Array]
    state: dict[str, Any]
    settings: dict[str, Any]

    @property
    def rules(self) -> int:
        """The version of `data.rules` of the run that wrote it."""
        return int(self.settings.get(RULES_KEY, FIRST_RULES))

    @property
    def held_out_by(self) -> dict[str, Any]:
        """What `DataSection.held_out_by` was in the run that wrote it; of an earlier version the split may be open."""
        split = self.settings.get("data.split", "random")
        if split != "random" and BLOCKS_KEY not in self.settings:
            split = "auto"
        others = {"split_blocks": BLOCKS_KEY, "group": GROUP_KEY, "test_split": TEST_KEY}
        return {"split": split} | {name: self.settings.get(key, OF_BEFORE.get(key)) for name, key in others.items()}

    @property
    def average(self) -> dict[str, Any] | None:
        """What `training.average` was in the run that wrote it; None of an earlier version."""
        return self.settings.get(AVERAGE_KEY)


class CheckpointStore:
    """The checkpoints of one run folder. Used by one rank; keeps the newest three and the best."""

    def __init__(self, folder: Path, waits_for_disk: bool = True) -> None:
        """`waits_for_disk` False: a power cut may damage what was saved last, which reading it then finds."""
        self._folder, self._waits_for_disk = folder, waits_for_disk

    def save(
        self,
        tensors: Mapping[str, Array],
        state: Mapping[str, Any],
        settings: Mapping[str, Any],
        step: int,
        kind: str = "step",
    ) -> Path:
        """Write checkpoint `kind`-`step` so that a kill or power cut at any moment loses at most this one.

        A step that is there and whole is left as it is: a finished run that is resumed has nothing newer to say, and
        replacing its only checkpoint could lose it. Returns when the disk has it. Raises OutputError when it cannot be
        written.
        """
        target = self._folder / f"{kind}-{step:08d}"
        self._clear_partial()
        if not _is_whole(target):
            self._write(target, encode_checkpoint(tensors, state, settings))
        elif self._waits_for_disk:
            _sync_what_is_found(target)
        # Also of what is found: the save that wrote it may have been killed before this.
        self._prune(kind, target)
        self._point_to(target, "latest" if kind == "step" else kind)
        return target

    def _write(self, target: Path, parts: tuple[bytes, bytes]) -> None:
        tensor_bytes, manifest_bytes = parts
        partial = self._folder / f".{target.name}.{os.getpid()}.partial"
        try:
            partial.mkdir(parents=True)
            self._write_parts(partial, tensor_bytes, manifest_bytes)
            _replace_folder(partial, target, self._waits_for_disk)
            write = write_durably if self._waits_for_disk else write_whole
            write(target / COMMIT, encode_commit(manifest_bytes))
        except OSError as error:
            raise OutputError(
                f"{target}: the checkpoint cannot be written ({error.strerror}); check space and permissions"
            ) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _write_parts(self, partial: Path, tensor_bytes: bytes, manifest_bytes: bytes) -> None:
        for name, content in ((TENSORS, tensor_bytes), (MANIFEST, manifest_bytes)):
            if self._waits_for_disk:
                write_and_sync(partial / name, content)
            else:
                (partial / name).write_bytes(content)
        if self._waits_for_disk:
            sync_folder(partial)

    def load_latest(self) -> tuple[Checkpoint, list[str]]:
        """Return the newest checkpoint that is whole, and a line for each newer one that is not.

        Raises CheckpointError when there is none.
        """
        notices: list[str] = []
        for path in self._newest_first("step"):
            try:
                return load_checkpoint(path), notices
            except CheckpointError as error:
                notices.append(f"{error}; falling back to the one before")
        if notices:
            reason = notices[0].removesuffix("; falling back to the one before")
            raise CheckpointError(
                f"{reason}; no older one can be used: start again with --overwrite, or in another output.model_dir"
            )
        raise CheckpointError(f"{self._folder}: holds no checkpoint to resume from; start without --resume")

    def holds_any(self) -> bool:
        """Tell whether there is any checkpoint, whole or not. Raises OutputError where that cannot be seen."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise OutputError(f"{self._folder}: cannot be read ({error.strerror}); check its permissions") from error
        return any(name.startswith(("step-", "best-")) for name in names)

    def _newest_first(self, kind: str) -> list[Path]:
        # By length first: beyond step 99999999 the names grow longer.
        found = (
            path for path in self._folder.glob(f"{kind}-*") if _NUMBER.fullmatch(path.name.removeprefix(f"{kind}-"))
        )
        return sorted(found, key=_order, reverse=True)

    def _clear_partial(self) -> None:
        # What a killed save left takes space, and in a container the next process may have the same number.
        for leftover in self._folder.glob(".*.partial"):
            leftover.unlink() if leftover.is_symlink() else shutil.rmtree(leftover, ignore_errors=True)

    def _point_to(self, target: Path, name: str) -> None:
        """Point the link `name` to `target`, for people and scripts; the store itself does not read it."""
        link = self._folder / name
        partial = link.with_name(f".{name}.{os.getpid()}.partial")
        with contextlib.suppress(OSError):  # some file systems have no links
            partial.symlink_to(target.name, target_is_directory=True)
            partial.replace(link)

    def _prune(self, kind: str, just_written: Path) -> None:
        # A resumed run may leave newer, damaged ones behind: only those up to the one just written are counted.
        older = [path for path in self._newest_first(kind) if _order(path) <= _order(just_written)]
        for path in older[NUM_NEWEST_KEPT if kind == "step" else 1 :]:
            shutil.rmtree(path, ignore_errors=True)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read and verify one checkpoint folder. Raises CheckpointError if a single bit is not as it was written."""
    return Checkpoint(path, *read_checkpoint(path))


def _is_whole(path: Path) -> bool:
    try:
        load_checkpoint(path)
    except CheckpointError:
        return False
    return True


def _sync_what_is_found(path: Path) -> None:
    """Flush a checkpoint to the disk that another process wrote: it may have been killed before it did."""
    try:
        for name in (TENSORS, MANIFEST, COMMIT):
            sync_file(path / name)
        sync_folder(path)
        sync_folder(path.parent)
    except OSError as error:
        raise OutputError(f"{path}: the checkpoint cannot be written to the disk ({error.strerror})") from error


def _order(path: Path) -> tuple[int, str]:
    return len(path.name), path.name


def _replace_folder(source: Path, target: Path, waits_for_disk: bool) -> None:
    if target.is_symlink():  # what it leads to is not the store's
        target.unlink()
    if target.exists():
        # Its commit record goes first: a kill in between leaves a checkpoint that is refused, not one that is half new.
        (target / COMMIT).unlink(missing_ok=True)
        shutil.rmtree(target)
    source.rename(target)
    if waits_for_disk:
        sync_folder(target.parent)
