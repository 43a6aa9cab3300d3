"""Mixed precision: autocast of the forward pass, and the loss scale that keeps small gradients from underflow."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from mpitrain.comm import Device
from mpitrain.config import TrainingSection
from mpitrain.errors import ConfigError

_NARROW = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class Precision:
    """Autocast for forward passes, and a dynamic loss scale for float16.

    The scale is adapted to the summed gradient, so that it is the same on all ranks.
    """

    def __init__(self, training: TrainingSection, device: Device) -> None:
        self._device, self._use_amp, self._narrow = device.type, training.use_amp, _NARROW[training.amp_dtype]
        if training.use_amp:
            check_precision(training.amp_dtype, device)
        needs_scale = training.use_amp and training.amp_dtype == "float16"
        self.scaler = torch.amp.GradScaler(self._device, enabled=needs_scale)

    def forward(self) -> AbstractContextManager[Any]:
        """Return the context in which a forward pass runs."""
        if not self._use_amp:
            return nullcontext()
        return torch.autocast(self._device, dtype=self._narrow)

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Return `loss` times the loss scale, which is 1 except for float16."""
        return self.scaler.scale(loss) if self.scaler.is_enabled() else loss

    def state(self) -> dict[str, torch.Tensor]:
        """Return the loss scale and its growth tracker for a checkpoint; empty without a scale."""
        state = self.scaler.state_dict()
        return {"loss_scale": torch.tensor([state["scale"], state["_growth_tracker"]])} if state else {}

    def restore(self, state: torch.Tensor | None) -> None:
        """Restore the result of `state`."""
        if state is not None and self.scaler.is_enabled():
            known = self.scaler.state_dict()
            self.scaler.load_state_dict(known | {"scale": float(state[0]), "_growth_tracker": int(state[1])})


def check_precision(amp_dtype: str, device: Device) -> None:
    """Raise ConfigError if `device` does not compute in `amp_dtype`."""
    if amp_dtype == "float16" and device.type == "cpu" and not cpu_has_float16():
        raise ConfigError(
            "training.amp_dtype=float16: this CPU has no float16 instructions; use training.amp_dtype=bfloat16 or a GPU"
        )


def cpu_has_float16() -> bool:
    """Return whether torch's CPU kernels multiply float16 matrices in hardware on this machine."""
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
