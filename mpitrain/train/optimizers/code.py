"""An optimiser of torch, of another library or of the user: a subclass of `torch.optim.Optimizer`, given by name."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from mpitrain.config import CodeComponent, CodeName, options_of
from mpitrain.train.optimizers.optimizer import Arithmetic, Optimizer

if TYPE_CHECKING:
    import torch


class CodeOptimizer(CodeComponent, Optimizer):
    """An optimiser given by the name of its class, which receives the parameters, and the learning rate as `lr`."""

    setting = "training.optimizer.type"
    kind = Optimizer

    type: CodeName
    """Which optimiser."""

    def given(self, target: Any) -> Sequence[str]:
        """See `CodeComponent.given`."""
        return (*super().given(target), "lr", "foreach")

    def check(self) -> None:
        """Import the code. Raises ConfigError if it is not an optimiser that can be used, or lacks an option."""
        import torch

        if self.own() is not None:
            return
        target, code = self.code.load(), self.code
        if not (isinstance(target, type) and issubclass(target, torch.optim.Optimizer)):
            raise code.error("is not a subclass of torch.optim.Optimizer; give one")
        closure = inspect.signature(target.step).parameters.get("closure")
        if closure is not None and closure.default is closure.empty:
            raise code.error("its step needs a closure that computes the loss again; give an optimiser without one")
        known = options_of(target)
        if known is not None and "lr" not in known:
            raise code.error("has no argument 'lr', so that the learning rate cannot be set; add one")
        self.check_options()

    def build(self, parameters: Iterable[torch.Tensor], arithmetic: Arithmetic = "plain") -> torch.optim.Optimizer:
        """See `Optimizer.build`."""
        import torch

        self.check()
        given = list(parameters)
        self._try(torch, given)
        optimizer = self._make(given)
        optimizer.step = self.code.guarded(optimizer.step)  # type: ignore[method-assign,assignment]
        return optimizer

    def _make(self, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        own: Optimizer | None = self.own()
        target = self.code.load()
        if own is not None:
            return self.code.run(lambda: own.build(parameters), "its build failed", "it is called with the parameters")
        # torch's default of `foreach` differs between devices.
        how = {"foreach": False} if "foreach" in (options_of(target) or ()) else {}
        made: torch.optim.Optimizer = self.code.call(target, parameters, lr=self.learning_rate, **how, **self.options)
        return made

    def _try(self, torch: Any, parameters: list[torch.Tensor]) -> None:
        """Take a step on copies. Raises ConfigError if it fails, or if its state cannot be saved in a checkpoint."""
        copies = [one.detach().clone().requires_grad_() for one in parameters]
        optimizer = self._make(copies)
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise self.code.error(f"returns {type(optimizer).__name__}; return a torch.optim.Optimizer")
        for one in copies:
            one.grad = torch.full_like(one, 1e-3)
        advice = "its step is called without arguments after each batch's gradient is set"
        self.code.run(optimizer.step, "its first step failed", advice)
        kept = {key: value for own in optimizer.state.values() for key, value in own.items()}
        for key, value in kept.items():
            if not (value is None or isinstance(value, torch.Tensor | bool | int | float)):
                problem = (
                    f"its state holds '{key}' of type {type(value).__name__}, which cannot be saved in a checkpoint"
                )
                raise self.code.error(f"{problem}; keep only tensors and numbers of each parameter")
