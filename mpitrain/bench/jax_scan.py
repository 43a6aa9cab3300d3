"""A training loop in JAX, for comparison: the steps of an epoch in one `lax.scan`, compiled by one `jit`.

b  samples in a batch      F  input features      O  targets
"""

from __future__ import annotations

import time
from typing import Any

from mpitrain.bench.baselines import model_of
from mpitrain.bench.step_cases import Network
from mpitrain.comm import Ranks
from mpitrain.data import Samples
from mpitrain.errors import MissingDependencyError, UserError

_LEARNING_RATE, _BETA1, _BETA2, _EPSILON = 1e-3, 0.9, 0.999, 1e-8


class JaxScan:
    """A chain of dense layers in JAX, with Adam, in one process with as many threads as NPROC says (see step.py)."""

    def __init__(self, ranks: Ranks, network: Network, samples: Samples, global_batch_size: int | str) -> None:
        """Arrange the samples in batches. Raises MissingDependencyError without JAX, UserError for other networks."""
        del ranks
        if not network.is_chain:
            raise UserError("jax-scan supports only chains of dense layers")
        try:
            import jax
        except ImportError as error:
            raise MissingDependencyError("jax-scan needs JAX: python -m pip install 'mpitrain[bench]'") from error
        rows = len(samples) if global_batch_size == "full" else int(global_batch_size)
        self._num_steps = len(samples) // rows
        if not self._num_steps:
            raise UserError(f"batch {rows}: more than the {len(samples)} samples; give a smaller one or more samples")
        kept = self._num_steps * rows
        self._batches = [
            jax.numpy.asarray(a[:kept].reshape(self._num_steps, rows, -1)) for a in (samples.inputs, samples.targets)
        ]
        weights = [parameter.detach().numpy() for parameter in model_of(network).parameters()]
        start = [jax.numpy.asarray(weight) for weight in weights]
        zeros = [jax.numpy.zeros_like(weight) for weight in start]
        self._state: Any = (start, zeros, [zero.copy() for zero in zeros], jax.numpy.float32(0))
        self._epoch = jax.jit(lambda state, batches: jax.lax.scan(_step_of(network), state, batches), donate_argnums=0)
        self._block = jax.block_until_ready
        self.time_steps(1)  # compiles

    def time_steps(self, num_steps: int) -> list[float]:
        """Train whole epochs, at least `num_steps` steps; return the mean time of each in microseconds."""
        times_us: list[float] = []
        while len(times_us) < num_steps:
            start_s = time.perf_counter()
            self._state, _ = self._block(self._epoch(self._state, self._batches))
            times_us += [(time.perf_counter() - start_s) * 1e6 / self._num_steps] * self._num_steps
        return times_us[:num_steps]


def _step_of(network: Network) -> Any:
    """Return the step (state, batch) -> (state, loss); the state is weights, moments, and the number of steps."""
    import jax

    map_tree, numpy = jax.tree.map, jax.numpy
    activations = {"relu": jax.nn.relu, "sigmoid": jax.nn.sigmoid, "none": lambda x: x}
    hidden, output = activations[network.hidden_activation], activations[network.output_activation]

    def loss_of(weights: Any, batch: Any) -> Any:
        x, targets = batch
        for layer in range(0, len(weights), 2):
            x = x @ weights[layer].T + weights[layer + 1]
            x = hidden(x) if layer + 2 < len(weights) else output(x)
        return numpy.mean((x - targets) ** 2)

    def step(state: Any, batch: Any) -> Any:
        weights, first, second, count = state
        loss, gradient = jax.value_and_grad(loss_of)(weights, batch)
        count = count + 1
        first = map_tree(lambda m, g: m + (1 - _BETA1) * (g - m), first, gradient)
        second = map_tree(lambda v, g: _BETA2 * v + (1 - _BETA2) * g * g, second, gradient)
        rate, correction = _LEARNING_RATE / (1 - _BETA1**count), 1 / numpy.sqrt(1 - _BETA2**count)
        weights = map_tree(
            lambda w, m, v: w - rate * m / (numpy.sqrt(v) * correction + _EPSILON), weights, first, second
        )
        return (weights, first, second, count), loss

    return step
