"""Whether a run needs torch and autograd, decided from its settings alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mpitrain.comm import Device
from mpitrain.config import DistributedSection, TrainingSection


@dataclass(frozen=True)
class EngineRequest:
    """The settings on which the choice of a step engine depends.

    Attributes
    ----------
    semantics : {"standard", "reference"}
    training, distributed : TrainingSection, DistributedSection
        Sections of the settings.
    instruction_set : str, default "native"
        `compute.instruction_set` of the compiled engine.
    resumed_engine : str or None
        The engine of the run that is resumed, which `auto` keeps; None for a new run.
    """

    semantics: str
    training: TrainingSection
    distributed: DistributedSection
    instruction_set: str = "native"
    resumed_engine: str | None = None

    def resuming(self, engine: str | None) -> EngineRequest:
        """Return the request for resuming a run.

        Parameters
        ----------
        engine : str or None
            The engine that trained the run; None for a new run.

        Returns
        -------
        EngineRequest
            A copy with this `resumed_engine`.
        """
        return replace(self, resumed_engine=engine)

    @property
    def engine(self) -> str:
        """`training.engine`; for auto, the engine that `distributed.strategy` implies or that of the resumed run."""
        asked = self.training.engine
        if asked == "auto" and self.distributed.strategy == "ddp":
            return "ddp"
        return self.resumed_engine if asked == "auto" and self.resumed_engine else asked

    @property
    def engine_setting(self) -> str:
        """The origin of the choice of the engine, as text: the setting, or the run that is resumed."""
        asked = self.training.engine
        if asked != "auto":
            return f"training.engine={asked}"
        if self.distributed.strategy == "ddp":
            return "distributed.strategy=ddp"
        return f"the resumed run's engine is {self.resumed_engine}" if self.resumed_engine else "training.engine=auto"

    def needs_autograd(self, device: Device) -> str | None:
        """Return the reason why the run needs an engine with autograd.

        Parameters
        ----------
        device : Device
            The device of this run's ranks.

        Returns
        -------
        str or None
            A clause for a message, such as "compiled steps run on CPUs"; None if no setting needs autograd. The network
            and the loss are not considered.
        """
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
        """Return whether a run can perhaps do without torch. Does not import torch.

        Parameters
        ----------
        network : Network
            The section `model` with its name resolved.

        Returns
        -------
        bool
            True if the network is a chain of dense layers and, on CPUs, the compiled engine supports the settings.
            Torch may still turn out to be needed, for example if there is no compiler.
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
