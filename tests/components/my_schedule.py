"""A schedule of a user: inverse square roots of the epoch."""


def inverse_root(epoch, after=2):
    """Return the factor of the learning rate in `epoch`, which counts from 0."""
    return 1.0 if epoch < after else (after / epoch) ** 0.5
