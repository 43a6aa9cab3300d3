"""The engine that was chosen for a run, the reason for it, and how it is built."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mpitrain.train.compiled.build import KernelNetwork
from mpitrain.train.compiled.engine import CompiledEngine
from mpitrain.train.engines.contract import StepEngine
from mpitrain.train.engines.standard import EngineInputs

if TYPE_CHECKING:
    from mpitrain.train.traced.gradient import TracedGradient


@dataclass(frozen=True)
class EngineChoice:
    """The engine's name, the reason for the choice, and the data that the compiled or the traced engine needs."""

    name: str
    reason: str
    network: KernelNetwork | None = None
    kernel: ctypes.CDLL | None = None
    gradient: TracedGradient | None = None
    is_fallback: bool = False

    @property
    def description(self) -> str:
        """The engine, and the reason in parentheses."""
        return f"{self.name} ({self.reason})" if self.reason else self.name

    @property
    def notices(self) -> tuple[str, ...]:
        """A notice if a faster engine exists that cannot be built on this machine."""
        return (f"training.engine={self.name}, {self.reason}",) if self.is_fallback else ()

    def build(self, inputs: EngineInputs) -> StepEngine:
        """Return the engine. Collective for `ddp` and `cuda_graph`."""
        if self.network is not None and self.kernel is not None:
            return CompiledEngine(inputs, self.network, self.kernel)
        return _torchs_engine(self, inputs)


def _torchs_engine(choice: EngineChoice, inputs: EngineInputs) -> StepEngine:
    if choice.gradient is not None:
        from mpitrain.train.traced.engine import TracedEngine

        return TracedEngine(inputs, choice.gradient)
    from mpitrain.train.engines.cuda_graph import CudaGraphEngine
    from mpitrain.train.engines.ddp import DdpEngine
    from mpitrain.train.engines.eager import EagerEngine
    from mpitrain.train.engines.reference import ReferenceEngine

    engines: dict[str, Callable[[EngineInputs], StepEngine]] = {
        "reference": ReferenceEngine,
        "eager": EagerEngine,
        "ddp": DdpEngine,
        "cuda_graph": CudaGraphEngine,
    }
    return engines[choice.name](inputs)
