"""The files of members: settings, metrics, checkpoints, `model.pt`, each written as cheaply as many of them need."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mpitrain.comm.ranks import Ranks
from mpitrain.config import RunConfig, render_yaml
from mpitrain.errors import CheckpointError, writing
from mpitrain.models.files.record import architecture_of, engine_of, is_rebuilt
from mpitrain.models.files.torchscript import (
    ModelDescription,
    ScriptedModel,
    save_model,
    save_normalization,
    script_model,
)
from mpitrain.observe.metrics_file import MetricsFile
from mpitrain.train.checkpoint.store import Checkpoint, CheckpointStore
from mpitrain.train.run_folder import RunFolder
from mpitrain.train.state import TrainingState
from mpitrain.train.watchers import SilentWatcher, epoch_record

_ADVICE = "free space, then --resume"


class ModelFiles:
    """Writes the models of a group's members. Belongs to the group's root."""

    def __init__(self) -> None:
        """Know no architecture yet."""
        self._scripted: dict[str, ScriptedModel] = {}
        self._last: tuple[nn.Module, ModelDescription, ScriptedModel] | None = None
        self._normalization: tuple[bytes, bytes] = b"", b""

    def write(self, model: nn.Module, path: Path, description: ModelDescription, waits_for_disk: bool) -> None:
        """Write `model.pt` and its normalisation file, as a single run does. Raises OutputError.

        `waits_for_disk` False: a power cut may damage them, which a resumed ensemble finds.
        """
        if not is_rebuilt(model):  # a user's own may hold more than its parameters
            save_model(model, path, description)
            save_normalization(model.get_buffer("input_mean"), model.get_buffer("input_std"), path)
            return
        self._scripted_like(model, path, description).write(model, path, waits_for_disk)
        self._write_normalization(model.get_buffer("input_mean"), model.get_buffer("input_std"), path)

    def _scripted_like(self, model: nn.Module, path: Path, description: ModelDescription) -> ScriptedModel:
        if self._last is not None and self._last[0] is model and self._last[1] == description:
            return self._last[2]  # a network that began again
        shapes = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in model.state_dict().items()]
        key = repr((model, description, architecture_of(model), engine_of(model), shapes))
        if key not in self._scripted:
            self._scripted[key] = script_model(model, path, description)
        self._last = model, description, self._scripted[key]
        return self._last[2]

    def _write_normalization(self, mean: torch.Tensor, std: torch.Tensor, path: Path) -> None:
        # Members of one split have the same statistics: the file is the same, byte for byte.
        statistics = torch.cat([mean, std]).cpu().numpy().tobytes()
        target = path.with_name(f"normalization.{path.name}")
        if statistics == self._normalization[0]:
            target.write_bytes(self._normalization[1])
            return
        save_normalization(mean, std, path)
        self._normalization = statistics, target.read_bytes()


def begin_folder(folder: RunFolder) -> Checkpoint | None:
    """Make the folder, and return the checkpoint to go on from. For the root. Raises OutputError."""
    is_new = not folder.path.exists()
    with writing(folder.path, _ADVICE):
        folder.checkpoints.mkdir(parents=True, exist_ok=True)
    if is_new:
        return None
    try:
        checkpoint, _ = CheckpointStore(folder.checkpoints).load_latest()
    except CheckpointError:  # none yet, or none whole: from the start
        return None
    return checkpoint


def write_settings(folder: RunFolder, config: RunConfig) -> None:
    """Write `config.yaml`. Raises OutputError."""
    with writing(folder.path, _ADVICE):
        folder.config.write_text(render_yaml(config))


# What took less to train is trained again where a power cut has damaged it: waiting for the disk would cost more.
WORTH_WAITING_S = 1.0
_Save = Callable[[], object]


class MemberCheckpoints:
    """Saves a member's checkpoints: its last, and one after so many seconds; the best weights are inside of them."""

    def __init__(
        self, group: Ranks, folder: RunFolder, settings: Mapping[str, Any], config: RunConfig, interval_s: float
    ) -> None:
        self._group, self._folder, self._settings = group, folder, settings
        self._training, self._interval_s = config.training, interval_s
        self._begun_s = self._saved_s = time.monotonic()
        self._skipped: _Save | None = None

    def __call__(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any], step: int, kind: str) -> None:
        """Save, if it is time. Collective."""
        # The best weights are in every checkpoint, for whoever goes on from it or looks for them.
        if kind != "best" and self._group.is_root:
            self._skipped = lambda: self._save(tensors, state, step)
        is_due = self._is_last(state) or time.monotonic() - self._saved_s >= self._interval_s
        self._group.on_root(lambda: self._save_skipped() if is_due else None)

    def save_skipped(self) -> None:
        """Save what it was too early to save, before the training stops there. Collective."""
        self._group.on_root(self._save_skipped)

    def _save_skipped(self) -> None:
        if self._skipped is not None:
            self._skipped()
            self._skipped = None

    def _save(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any], step: int) -> None:
        now_s = time.monotonic()
        store = CheckpointStore(self._folder.checkpoints, waits_for_disk=now_s - self._begun_s > WORTH_WAITING_S)
        store.save(tensors, state, self._settings, step)
        self._saved_s = now_s

    def _is_last(self, state: Mapping[str, Any]) -> bool:
        # Between epochs a checkpoint is one of many, unless the training ends or is stopped there.
        is_stopped = state["step_in_epoch"] > 0 or state["global_step"] == self._training.max_steps
        return bool(is_stopped or state["stopped_early"] or state["epoch"] == self._training.epochs)


class MemberWatcher(SilentWatcher):
    """Writes one record an epoch to the member's `metrics.jsonl`, on the group's root."""

    def __init__(self, group: Ranks, folder: RunFolder, config: RunConfig, checkpoint: Checkpoint | None) -> None:
        """Cut the records back to `checkpoint`, where there are any."""
        self._training = config.training
        self._metrics: MetricsFile | None = None
        if group.is_root:
            is_new = not folder.metrics.exists()
            self._metrics = MetricsFile(folder.metrics)
            if not is_new:
                self._metrics.cut_back(int(checkpoint.state["global_step"]) if checkpoint else 0)

    def on_epoch(self, state: TrainingState, learning_rate: float, wall_time_s: float) -> None:
        """See `Watcher.on_epoch`."""
        if self._metrics is not None:
            self._metrics.append(epoch_record(state, learning_rate, wall_time_s, self._training))

    def __enter__(self) -> MemberWatcher:
        return self

    def __exit__(self, *_: object) -> None:
        if self._metrics is not None:
            self._metrics.close()
