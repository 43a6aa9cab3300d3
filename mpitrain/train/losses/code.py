"""A loss of torch, of another library or of the user, given by the name of a module class or a function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpitrain.config import CodeComponent, CodeName, options_of
from mpitrain.train.losses.loss import ElementLosses, Loss

_ADVICE = "it is called with outputs and targets of one shape"


class CodeLoss(CodeComponent, Loss):
    """A loss given by the name of its class or function, with one value per element.

    The argument `reduction="none"` is passed if the class or function has it.
    """

    setting = "training.loss_function"
    kind = Loss

    type: CodeName
    """Which loss."""

    def given(self, target: Any) -> Sequence[str]:
        """See `CodeComponent.given`."""
        return ("reduction",) if isinstance(target, type) else (*list(options_of(target) or ())[:2], "reduction")

    def check(self) -> None:
        """Import the code. Raises ConfigError if it does not return one loss per element, or lacks an option."""
        self.build()

    def build(self) -> ElementLosses:
        """See `Loss.build`."""
        own = self.own()
        losses = (
            self._of_code()
            if own is None
            else self.code.run(own.build, "its build failed", "it is called without arguments")
        )
        self._try(losses)
        return self.code.guarded(losses)

    def _of_code(self) -> ElementLosses:
        from torch import nn

        target, code = self.code.load(), self.code
        is_module = isinstance(target, type) and issubclass(target, nn.Module)
        how: dict[str, Any] = {"reduction": "none"} if "reduction" in (options_of(target) or ()) else {}
        self.check_options()
        if not is_module:
            return lambda outputs, targets: target(outputs, targets, **how, **self.options)
        module: Any = code.call(target, **how, **self.options)
        if next(module.parameters(), None) is not None:
            raise code.error("has parameters, which would not be trained; make them options")
        return module  # type: ignore[no-any-return]

    def _try(self, losses: ElementLosses) -> None:
        """Raise ConfigError unless the result has one loss per element that does not depend on other samples."""
        import torch

        outputs = torch.linspace(0.1, 0.9, 6).view(3, 2)
        targets = outputs.flip(0).sqrt()
        found = self.code.run(lambda: losses(outputs, targets), "fails", _ADVICE)
        if not isinstance(found, torch.Tensor) or found.shape != targets.shape:
            shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
            raise self.code.error(
                f"returns {shape} for outputs of shape {tuple(targets.shape)}; return the loss of each element, "
                "or accept the argument 'reduction', which is \"none\" here"
            )
        alone = self.code.run(lambda: losses(outputs[1:2], targets[1:2]), "fails on one sample", _ADVICE)
        if not torch.allclose(alone, found[1:2], equal_nan=True):
            raise self.code.error(
                "returns a loss of a sample that depends on the other samples; return the loss of each element alone"
            )
