"""What a run needs to be computed, by its settings alone: torch or not, autograd or not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mpitrain.comm import Device
from mpitrain.config import DistributedSection, TrainingSection


@dataclass(frozen=True)
class EngineRequest:
    """The settings on which the choice of a step engine depends."""

    semantics: str
    training: TrainingSection
    distributed: DistributedSection
    instruction_set: str = "native"
    resumed_engine: str | None = None
    """The engine of the run that is resumed: `auto` keeps it."""

    def resuming(self, engine: str | None) -> EngineRequest:
        """Return the request of a run that is resumed, and that was trained by `engine`; None: a new run."""
        return replace(self, resumed_engine=engine)

    @property
    def engine(self) -> str:
        """`training.engine`, the engine that `distributed.strategy` implies, or for auto that of the resumed run."""
        asked = self.training.engine
        if asked == "auto" and self.distributed.strategy == "ddp":
            return "ddp"
        return self.resumed_engine if asked == "auto" and self.resumed_engine else asked

    @property
    def engine_setting(self) -> str:
        """What names the engine, as text for a person: the setting, or the run that is resumed."""
        asked = self.training.engine
        if asked != "auto":
            return f"training.engine={asked}"
        if self.distributed.strategy == "ddp":
            return "distributed.strategy=ddp"
        return f"the resumed run's engine is {self.resumed_engine}" if self.resumed_engine else "training.engine=auto"

    def needs_autograd(self, device: Device) -> str | None:
        """Return the setting that only autograd can follow, as a clause; None where there is none."""
        if device.type != "cpu":
            return "compiled steps run on CPUs"
        if self.training.optimizer.kernel is None:
            return f"training.optimizer.type={self.training.optimizer.name} has no compiled kernel"
        for key in ("use_amp", "torch_compile", "gradient_checkpointing"):
            if getattr(self.training, key):
                return f"training.{key}=true needs autograd"
        if self.distributed.strategy == "dp":
            return "distributed.strategy=dp needs autograd"
        return None

    def may_need_no_torch(self, network: Any) -> bool:
        """Tell whether a run of `network`, its resolved settings, may do without torch.

        It may turn out that it cannot, for example where there is no compiler.
        """
        training = self.training
        return (
            self.semantics == "standard"
            and self.resuming(None).engine in ("auto", "compiled")
            and self.needs_autograd(Device("cpu")) is None
            and training.loss_function.kernel is not None
            and network.chain(1, 1) is not None
            and not training.follows_jacobian
            and not training.profile_training
            and network.initial_weights is None
        )
