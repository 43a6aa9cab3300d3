"""The files of members: metrics, checkpoints, `model.pt`, each written fast, since there are many of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mpitrain.comm import Ranks
from mpitrain.config import TrainingSection
from mpitrain.errors import CheckpointError, writing
from mpitrain.models import ModelDescription, architecture_of, is_rebuilt, save_model, save_normalization
from mpitrain.models.dense_module import ModuleViews
from mpitrain.models.files.record import engine_of
from mpitrain.models.files.torchscript import ScriptedModel, script_model
from mpitrain.observe import MetricsFile
from mpitrain.runs.watching import save_claimed
from mpitrain.train import Callback, Checkpoint, CheckpointStore, ClaimedFolder, RunFolder, TrainingState
from mpitrain.train.callbacks import epoch_record
from mpitrain.train.checkpoint.manifest import check_whole
from mpitrain.train.run_folder import refuse_link

_ADVICE = "free space, then --resume"


class ModelFiles:
    """Writer of the models of a group's members. Used by the group's root."""

    def __init__(self) -> None:
        """Start with empty caches."""
        self._scripted: dict[str, ScriptedModel] = {}
        self._last: tuple[nn.Module, ModelDescription, ScriptedModel] | None = None
        self._normalization: tuple[bytes, bytes] = b"", b""
        self._modules = ModuleViews()

    def write(self, trained: Any, path: Path, description: ModelDescription, waits_for_disk: bool) -> None:
        """Write `model.pt` and its normalisation file, as a single run does. Raises OutputError.

        `waits_for_disk`: if False, a power cut may damage them, which a resumed ensemble detects.
        """
        model = self._modules.of(trained)
        if not is_rebuilt(model):  # a user's own network may hold more than its parameters
            save_model(model, path, description)
            save_normalization(model.get_buffer("input_mean"), model.get_buffer("input_std"), path)
            return
        self._scripted_like(model, path, description).write(model, path, waits_for_disk)
        self._write_normalization(model.get_buffer("input_mean"), model.get_buffer("input_std"), path)

    def _scripted_like(self, model: nn.Module, path: Path, description: ModelDescription) -> ScriptedModel:
        if self._last is not None and self._last[0] is model and self._last[1] == description:
            return self._last[2]  # the network of the previous member, restarted
        shapes = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in model.state_dict().items()]
        key = repr((model, description, architecture_of(model), engine_of(model), shapes))
        if key not in self._scripted:
            self._scripted[key] = script_model(model, path, description)
        self._last = model, description, self._scripted[key]
        return self._last[2]

    def _write_normalization(self, mean: torch.Tensor, std: torch.Tensor, path: Path) -> None:
        # Members with the same split have the same statistics, so that the file is the same, byte for byte.
        statistics = torch.cat([mean, std]).cpu().numpy().tobytes()
        target = path.with_name(f"normalization.{path.name}")
        if statistics == self._normalization[0]:
            target.write_bytes(self._normalization[1])
            return
        save_normalization(mean, std, path)
        self._normalization = statistics, target.read_bytes()


def begin_folder(folder: RunFolder, claim: ClaimedFolder) -> Checkpoint | None:
    """Create a member's folder, and return the checkpoint to continue from, if there is one. Root only.

    Raises OutputError, also if another launch has taken over the ensemble's folder.
    """
    claim.check_claim()
    is_new = not folder.path.exists()
    refuse_link(folder.path)
    folder.refuse_links()
    with writing(folder.path, _ADVICE):
        folder.checkpoints.mkdir(parents=True, exist_ok=True)
    if is_new:
        return None
    try:
        checkpoint, _ = CheckpointStore(folder.checkpoints).load_latest()
        check_whole(checkpoint.path, checkpoint.state, checkpoint.settings)
    except CheckpointError:  # none yet, or none complete: start from scratch
        return None
    return checkpoint


# Members that took less time are trained again if a power cut damaged them: waiting for the disk would cost more.
WORTH_WAITING_S = 1.0
_Save = Callable[[], object]


class MemberCheckpoints(Callback):
    """Writer of a member's checkpoints: the last one, and one every `interval_s`; each contains the best weights."""

    def __init__(
        self, group: Ranks, folder: RunFolder, settings: Mapping[str, Any], training: TrainingSection,
        interval_s: float, claim: ClaimedFolder,
    ) -> None:  # fmt: skip
        self._group, self._folder, self._settings = group, folder, settings
        self._training, self._interval_s, self._claim = training, interval_s, claim
        self._begun_s = self._saved_s = time.monotonic()
        self._skipped: _Save | None = None

    def on_checkpoint(self, tensors: Mapping[str, Any], state: TrainingState, kind: str) -> None:
        """Save the checkpoint if one is due. Collective."""
        # No checkpoint of kind "best" is written: the best weights are in every other checkpoint.
        if kind != "best" and self._group.is_root:
            then = replace(state)  # a copy, because the training changes it
            self._skipped = lambda: self._save(tensors, then)
        # A checkpoint between epochs can be skipped, unless the training ends or is stopped there.
        is_last = state.step_in_epoch > 0 or state.stopped_early or state.epoch == self._training.epochs
        is_due = is_last or time.monotonic() - self._saved_s >= self._interval_s
        self._group.on_root(lambda: self._save_skipped() if is_due else None)

    def save_skipped(self) -> None:
        """Save the newest checkpoint if it was skipped, before the training stops. Collective."""
        self._group.on_root(self._save_skipped)

    def _save_skipped(self) -> None:
        if self._skipped is not None:
            self._skipped()
            self._skipped = None

    def _save(self, tensors: Mapping[str, Any], state: TrainingState) -> None:
        now_s = time.monotonic()
        store = CheckpointStore(self._folder.checkpoints, waits_for_disk=now_s - self._begun_s > WORTH_WAITING_S)
        save_claimed(store, self._claim, tensors, state, self._settings)
        self._saved_s = now_s


class MemberWatcher(Callback):
    """Writer of one record per epoch to the member's `metrics.jsonl`, on the group's root."""

    def __init__(
        self, group: Ranks, folder: RunFolder, training: TrainingSection, checkpoint: Checkpoint | None
    ) -> None:
        """Remove records that are newer than `checkpoint`, if there are any."""
        self._training = training
        self._metrics: MetricsFile | None = None
        if group.is_root:
            is_new = not folder.metrics.exists()
            self._metrics = MetricsFile(folder.metrics)
            if not is_new:
                self._metrics.cut_back(int(checkpoint.state["global_step"]) if checkpoint else 0)

    def on_epoch(self, state: TrainingState, learning_rate: float, wall_time_s: float) -> None:
        """See `Callback.on_epoch`."""
        if self._metrics is not None:
            self._metrics.append(epoch_record(state, learning_rate, wall_time_s, self._training))

    def __enter__(self) -> MemberWatcher:
        return self

    def __exit__(self, *_: object) -> None:
        if self._metrics is not None:
            self._metrics.close()
