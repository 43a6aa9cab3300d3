"""The store of checkpoints; incomplete or damaged ones are refused.

checkpoints/step-00000120/tensors.safetensors   the tensors; no pickle
checkpoints/step-00000120/manifest.json         state, settings, a SHA-256 of each tensor and of the tensor file
checkpoints/step-00000120/commit.json           SHA-256 of the manifest and of itself; without it nothing was saved
checkpoints/best-00000100/...                   the weights with the best validation loss so far
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
# Values for checkpoints of earlier versions, which do not contain these settings.
OLD_DEFAULTS = {RULES_KEY: FIRST_RULES, TEST_KEY: 0.0}
AVERAGE_KEY = "training.average"
NUM_NEWEST_KEPT = 3
# Folders with other names, e.g. a user's copy step-backup, do not belong to the store.
_NUMBER = re.compile(r"\d{8,}")


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint.

    Attributes
    ----------
    path : Path
        The folder of the checkpoint.
    tensors : dict of str to ndarray or Tensor
        numpy arrays, or torch tensors on the CPU if numpy lacks a dtype: `model.*`, `optimizer.*`, `engine.*`,
        `average.*` and `best.*`; see `Callback.on_checkpoint`.
    state : dict of str to object
        The state that was passed to `CheckpointStore.save`; see `TrainingState.to_manifest`.
    settings : dict of str to object
        The settings that were passed to `CheckpointStore.save`, by dotted key.
    """

    path: Path
    tensors: dict[str, Array]
    state: dict[str, Any]
    settings: dict[str, Any]

    @property
    def rules(self) -> int:
        """The version `data.rules` of the run that wrote it."""
        return int(self.settings.get(RULES_KEY, FIRST_RULES))

    @property
    def held_out_by(self) -> dict[str, Any]:
        """`DataSection.held_out_by` of the run that wrote it; the split may be "auto" for earlier versions."""
        split = self.settings.get("data.split", "random")
        if split != "random" and BLOCKS_KEY not in self.settings:
            split = "auto"
        others = {"split_blocks": BLOCKS_KEY, "group": GROUP_KEY, "test_split": TEST_KEY}
        return {"split": split} | {name: self.settings.get(key, OLD_DEFAULTS.get(key)) for name, key in others.items()}

    @property
    def average(self) -> dict[str, Any] | None:
        """`training.average` of the run that wrote it; None if written by an earlier version."""
        return self.settings.get(AVERAGE_KEY)


class CheckpointStore:
    """The checkpoints of one run folder, used by one rank. Keeps the newest three and the best.

    Parameters
    ----------
    folder : Path
        The folder `checkpoints` of the run; created by the first `save`.
    waits_for_disk : bool, default True
        `save` returns when the checkpoint is on the disk (fsync). If False, a power cut may damage the latest
        checkpoint; reading it detects this.

    Notes
    -----
    Not collective: the root writes and reads the checkpoints of all ranks.
    """

    def __init__(self, folder: Path, waits_for_disk: bool = True) -> None:
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

        Parameters
        ----------
        tensors : mapping of str to ndarray or Tensor
            On any device.
        state, settings : mapping of str to object
            JSON values without NaN and infinities. Floats are preserved bit for bit.
        step : int
            Number of optimiser steps so far; the name has at least 8 digits.
        kind : {"step", "best"}, default "step"
            Older checkpoints of this kind are then removed: three are kept of kind "step", one of kind "best".

        Returns
        -------
        Path
            The folder of the checkpoint.

        Raises
        ------
        OutputError
            The checkpoint cannot be written.

        Notes
        -----
        An undamaged checkpoint of this kind and step is kept: a finished run that is resumed has nothing newer to save,
        and replacing its only checkpoint could lose it. The order of operations is: write the tensors and the manifest
        to a temporary folder, rename it, write the commit record. A checkpoint without a commit record is refused.
        """
        target = self._folder / f"{kind}-{step:08d}"
        self._clear_partial()
        if not _is_whole(target):
            self._write(target, encode_checkpoint(tensors, state, settings))
        elif self._waits_for_disk:
            _sync_existing(target)
        # Also for an existing checkpoint: the process that wrote it may have been killed before this.
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
        """Return the newest undamaged checkpoint of kind "step".

        Returns
        -------
        checkpoint : Checkpoint
        notices : list of str
            One for each newer checkpoint that is damaged.

        Raises
        ------
        CheckpointError
            There is no checkpoint, or none can be used.
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
        """Return whether there is any checkpoint, damaged or not.

        Returns
        -------
        bool
            True if any name in the folder begins with "step-" or "best-"; False if there is no folder.

        Raises
        ------
        OutputError
            The folder cannot be read.
        """
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise OutputError(f"{self._folder}: cannot be read ({error.strerror}); check its permissions") from error
        return any(name.startswith(("step-", "best-")) for name in names)

    def _newest_first(self, kind: str) -> list[Path]:
        # By length first: names of steps above 99999999 are longer.
        found = (
            path for path in self._folder.glob(f"{kind}-*") if _NUMBER.fullmatch(path.name.removeprefix(f"{kind}-"))
        )
        return sorted(found, key=_order, reverse=True)

    def _clear_partial(self) -> None:
        # Files of a killed save take space, and in a container the next process may have the same number.
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
        # Newer, damaged checkpoints may be left of a run before it was resumed: count only those up to `just_written`.
        older = [path for path in self._newest_first(kind) if _order(path) <= _order(just_written)]
        for path in older[NUM_NEWEST_KEPT if kind == "step" else 1 :]:
            shutil.rmtree(path, ignore_errors=True)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read and verify one checkpoint folder. Raises CheckpointError if any bit has changed since it was written."""
    return Checkpoint(path, *read_checkpoint(path))


def _is_whole(path: Path) -> bool:
    try:
        load_checkpoint(path)
    except CheckpointError:
        return False
    return True


def _sync_existing(path: Path) -> None:
    """Flush an existing checkpoint to the disk: the process that wrote it may have been killed before it did."""
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
    if target.is_symlink():  # the link's target does not belong to the store
        target.unlink()
    if target.exists():
        # Remove the commit record first: a kill after it leaves a checkpoint that is refused, not a half-new one.
        (target / COMMIT).unlink(missing_ok=True)
        shutil.rmtree(target)
    source.rename(target)
    if waits_for_disk:
        sync_folder(target.parent)
