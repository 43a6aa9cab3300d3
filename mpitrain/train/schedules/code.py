"""A schedule of torch, of another library or of the user, given by name: a scheduler class or a function."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from mpitrain.config import CodeComponent, CodeName
from mpitrain.train.schedules.schedule import Rates, Schedule

_MOMENTUM = 0.5  # any value; used to detect schedules that change the momentum


class CodeSchedule(CodeComponent, Schedule):
    """A schedule given by the name of a class, or of a function of the epoch that returns a learning rate factor.

    A class is a subclass of `torch.optim.lr_scheduler.LRScheduler`; it takes one step per epoch.
    """

    setting = "training.scheduler.type"
    kind = Schedule

    type: CodeName
    """Which schedule; required."""

    def given(self, target: Any) -> Sequence[str]:
        """See `CodeComponent.given`."""
        first = super().given(target)  # the optimiser, or the epoch
        return [*first, "last_epoch"] if isinstance(target, type) else first

    def check(self) -> None:
        """Import the code. Raises ConfigError if it does not return a learning rate, or lacks an option."""
        self.build(1.0, 1)(0, 0)

    def describe(self) -> str:
        """See `Component.describe`."""
        return f"the schedule {self.type}"

    @property
    def plateau_patience(self) -> int | None:
        """See `Schedule.plateau_patience`."""
        own = self.own()
        return None if own is None else own.plateau_patience

    def build(self, base: float, num_epochs: int) -> Rates:
        """See `Schedule.build`."""
        own = self.own()
        if own is not None:
            made = self.code.run(lambda: own.build(base, num_epochs), "its build failed", "see its options")
            return lambda epoch, num_plateaus: self._checked(made(epoch, num_plateaus), epoch)
        target = self.code.load()
        if not isinstance(target, type):
            self.check_options()
            return lambda epoch, num_plateaus: self._checked(
                base * self.code.call(target, epoch, **self.options), epoch
            )
        rates = self._rates(target, base)
        known: list[float] = []

        def rate(epoch: int, num_plateaus: int) -> float:
            # Always computed from the first epoch on, also in a resumed run, so that no state needs to be saved.
            while len(known) <= epoch:
                known.append(self._checked(next(rates), len(known)))
            return known[epoch]

        return rate

    def _rates(self, target: Any, base: float) -> Iterator[float]:
        """Return an iterator over the learning rates of torch's scheduler class `target`, one per epoch."""
        import torch

        if not issubclass(target, torch.optim.lr_scheduler.LRScheduler):
            raise self.code.error("is neither a torch.optim.lr_scheduler.LRScheduler nor a function of the epoch")
        if issubclass(target, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise self.code.error("needs the loss of each epoch; use training.scheduler.type=plateau")
        self.check_options()
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], base, momentum=_MOMENTUM)
        scheduler = self.code.call(target, optimizer, **self.options)
        return self._steps(optimizer, scheduler)

    def _steps(self, optimizer: Any, scheduler: Any) -> Iterator[float]:
        (group,) = optimizer.param_groups
        while True:
            if group["momentum"] != _MOMENTUM:
                raise self.code.error(
                    "changes the momentum, which must stay constant; give options: {cycle_momentum: false}"
                )
            yield float(group["lr"])
            optimizer.step()
            self.code.run(scheduler.step, "its step failed", "it is called once per epoch")

    def _checked(self, rate: Any, epoch: int) -> float:
        if not isinstance(rate, int | float) or not math.isfinite(rate) or rate < 0:
            raise self.code.error(
                f"returns {rate!r} for the learning rate of epoch {epoch + 1}; return a number, 0 or above"
            )
        return float(rate)
