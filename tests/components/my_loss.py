"""A loss of a user: the logarithm of the hyperbolic cosine of the error, element by element."""

import torch


def log_cosh(outputs, targets, scale=1.0):
    """Return the loss of each element: quadratic near 0, linear far away."""
    error = (outputs - targets) / scale
    return torch.nn.functional.softplus(-2.0 * error) + error - 0.6931471805599453
