"""Which engine a run uses, and why; and how it is built."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

from mpitrain.train.compiled.build import DenseNetwork
from mpitrain.train.compiled.engine import CompiledEngine
from mpitrain.train.engines.contract import StepEngine
from mpitrain.train.engines.cuda_graph import CudaGraphEngine
from mpitrain.train.engines.ddp import DdpEngine
from mpitrain.train.engines.eager import EagerEngine
from mpitrain.train.engines.reference import ReferenceEngine
from mpitrain.train.engines.standard import EngineInputs
from mpitrain.train.traced.engine import TracedEngine
from mpitrain.train.traced.gradient import TracedGradient

_SAME_ON_ANY_CPU = frozenset({"compiled"})


@dataclass(frozen=True)
class EngineChoice:
    """The engine's name, why it was chosen, and what the compiled or the traced one needs."""

    name: str
    reason: str
    network: DenseNetwork | None = None
    kernel: ctypes.CDLL | None = None
    gradient: TracedGradient | None = None
    is_second_best: bool = False

    @property
    def words(self) -> str:
        """The engine, and why."""
        return f"{self.name} ({self.reason})" if self.reason else self.name

    @property
    def same_on_any_cpu(self) -> bool:
        """True where the engine promises the same bits on CPUs of all kinds."""
        return self.name in _SAME_ON_ANY_CPU

    @property
    def notices(self) -> tuple[str, ...]:
        """What the user should know: that another engine would have been faster."""
        return (f"training.engine={self.name}, {self.reason}",) if self.is_second_best else ()

    def build(self, inputs: EngineInputs) -> StepEngine:
        """Return the engine. Collective for `ddp` and `cuda_graph`."""
        if self.network is not None and self.kernel is not None:
            return CompiledEngine(inputs, self.network, self.kernel)
        if self.gradient is not None:
            return TracedEngine(inputs, self.gradient)
        engines: dict[str, Callable[[EngineInputs], StepEngine]] = {
            "reference": ReferenceEngine,
            "eager": EagerEngine,
            "ddp": DdpEngine,
            "cuda_graph": CudaGraphEngine,
        }
        return engines[self.name](inputs)
