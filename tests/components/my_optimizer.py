"""An optimiser of a user: the sign of the mean gradient (Bernstein et al., 2018), with momentum."""

import torch


class SignDescent(torch.optim.Optimizer):
    """Steps of one length, against the sign of a decaying mean of gradients."""

    def __init__(self, params, lr, decay=0.9):
        if not 0 <= decay < 1:
            raise ValueError(f"decay is {decay}, not in 0 <= decay < 1")
        super().__init__(params, {"lr": lr, "decay": decay, "steps": 0})

    @torch.no_grad()
    def step(self):
        """Update the parameters by their gradients."""
        for group in self.param_groups:
            group["steps"] += 1  # a number in a group is saved and resumed
            for parameter in group["params"]:
                mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                mean.mul_(group["decay"]).add_(parameter.grad, alpha=1 - group["decay"])
                parameter.add_(mean.sign(), alpha=-group["lr"] / (1 + 0.01 * group["steps"]))
