"""Components that fail: when they are made, or in the 50th step."""

import torch


class FailsInBuild(torch.optim.SGD):
    """An optimiser that cannot be made."""

    def __init__(self, params, lr):
        raise RuntimeError("no such memory")


class FailsLater(torch.optim.SGD):
    """An optimiser whose 50th step fails."""

    def __init__(self, params, lr):
        super().__init__(params, lr, foreach=False)
        self.number = 0

    def step(self):
        """Update, or fail."""
        self.number += 1
        if self.number == 50:
            raise RuntimeError("the 50th step")
        super().step()


class NeedsDecay(torch.optim.SGD):
    """An optimiser with an option that has no default."""

    def __init__(self, weights, lr, decay):
        super().__init__(weights, lr, weight_decay=decay, foreach=False)


def mean_of_all(outputs, targets):
    """Return one number, not one an element."""
    return (outputs - targets).square().mean()


def centred(outputs, targets):
    """Return losses that depend on the other samples."""
    error = outputs - targets
    return (error - error.mean(dim=0)).square()
