"""The gradient of a network's loss as a list of tensor operations, recorded once and run without Python and autograd.

The operations of autograd for one microbatch are recorded for k microbatches at once, each with its own gradient;
TorchScript's interpreter then runs them, three times as fast as the same calls from Python.

k  microbatches of a call      b  rows of one      n  parameters in all      t  parameter tensors
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn

from mpitrain.comm import Device, Ranks
from mpitrain.data import Microbatch
from mpitrain.models import batch_norm_layers
from mpitrain.train.losses.loss import Loss
from mpitrain.train.losses.weighted import WeightedLoss, loss_of
from mpitrain.train.needs import EngineRequest
from mpitrain.train.traced.interpreter import interpreted

Rows = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
# Gradients that are summed in different orders differ less than this, by rounding; the gradient of a forward pass that
# was recorded wrongly, e.g. in one branch of several, is wrong by orders of magnitude more.
_LARGEST_RELATIVE_ERROR = 1e-3


class NotTraceableError(Exception):
    """Raised if a recorded list of operations cannot replace the network's forward pass; the message is the reason."""


class TracedGradient:
    """Gradients of `loss` summed over a microbatch, for any number of microbatches.

    `example` is a microbatch of the recorded shapes. `draws_numbers` is true if the forward pass draws random numbers
    from torch's default generator.
    """

    def __init__(
        self, model: nn.Module, loss: Loss, example: Microbatch, target_weights: tuple[float, ...] = ()
    ) -> None:
        """Record `model` once on microbatches of the shape of `example`. Changes neither.

        Raises NotTraceableError.
        """
        self.example, self._model, self._loss = example, model, loss_of(loss, model, target_weights)
        tensors: dict[str, torch.Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self._trained = {name: value for name, value in tensors.items() if value.requires_grad}
        self._fixed = {name: value for name, value in tensors.items() if not value.requires_grad}
        graph = _record_checked(model, lambda: self._graph(random_microbatches(example, 2)))
        tags = (getattr(node.target, "tags", ()) for node in graph.graph.nodes)
        self.draws_numbers = any(torch.Tag.nondeterministic_seeded in of_node for of_node in tags)
        if not self.draws_numbers:
            self._check_against_autograd(example)

    def compile(self, microbatches: Microbatch) -> Rows:
        """Return a function of inputs (k, b, ...), targets and weights of these shapes that returns rows (k, n + 3).

        A row holds the gradient of the microbatch's summed loss, that sum, the sum of its weights, and a zero.
        """
        # Bound once: engines change the parameters in place, so each call uses their present values.
        tensors = [value.detach() for value in (*self._trained.values(), *self._fixed.values())]
        scripted, constants = interpreted(self._graph(microbatches))

        def rows(inputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            return cast(torch.Tensor, scripted(*tensors, inputs, targets, weights, *constants))

        return rows

    def _graph(self, microbatches: Microbatch) -> torch.fx.GraphModule:
        from torch.fx.experimental.proxy_tensor import make_fx

        tensors = (*self._trained.values(), *self._fixed.values())
        in_dims = (*[None] * len(tensors), 0, 0, 0)
        row = _row_of(self._model, self._loss, list(self._trained), list(self._fixed))
        rows = torch.vmap(row, in_dims=in_dims, randomness="different")
        record = make_fx(rows, tracing_mode="fake", _allow_non_fake_inputs=True)
        return record(*tensors, *data_of(microbatches))

    def _check_against_autograd(self, example: Microbatch) -> None:
        """Raise NotTraceableError unless the recorded gradient agrees with autograd's, to rounding, on random data."""
        stacked = random_microbatches(example, 2)
        rows = self.compile(stacked)(stacked.inputs, stacked.targets, stacked.weights)
        for number, row in enumerate(rows):
            microbatch = Microbatch(0, stacked.inputs[number], stacked.targets[number], stacked.weights[number])
            loss_sum, _ = self._loss.sums(self._model(microbatch.inputs).to(microbatch.targets.dtype), microbatch)
            own = torch.autograd.grad(loss_sum, [*self._trained.values()], allow_unused=True, materialize_grads=True)
            expected = torch.cat([gradient.reshape(-1) for gradient in own])
            if (row[: len(expected)] - expected).norm() > _LARGEST_RELATIVE_ERROR * expected.norm():
                raise NotTraceableError("its recorded gradient differs from the one that autograd computes")


def _row_of(model: nn.Module, loss: WeightedLoss, trained: list[str], fixed: list[str]) -> Callable[..., torch.Tensor]:
    """Return a function that computes the row of a microbatch from tensors: trained and fixed ones, then its data."""
    names = {id(tensor): name for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    # All places of a shared tensor, but each module once: `functional_call` would not restore a tensor that it replaces
    # twice in the same module.
    places = {
        f"{path}.{key}".removeprefix("."): names[id(tensor)]
        for path, module in model.named_modules()
        for key, tensor in (*module._parameters.items(), *module._buffers.items())
        if tensor is not None
    }

    def row(*values: torch.Tensor) -> torch.Tensor:
        constant = dict(zip(fixed, values[len(trained) : -3], strict=True))
        microbatch = Microbatch(0, *values[-3:])

        def summed_loss(*own: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
            tensors = constant | dict(zip(trained, own, strict=True))
            placed = {place: tensors[name] for place, name in places.items()}
            outputs = torch.func.functional_call(model, placed, (microbatch.inputs,), tie_weights=False)
            sums = loss.sums(outputs.to(microbatch.targets.dtype), microbatch)
            return sums[0], sums

        gradient = torch.func.grad(summed_loss, argnums=tuple(range(len(trained))), has_aux=True)
        gradients, sums = gradient(*values[: len(trained)])
        extras = torch.stack([*sums, sums[0].new_zeros(())])
        return torch.cat([*(one.reshape(-1) for one in gradients), extras])

    return row


def _record_checked(model: nn.Module, record: Callable[[], torch.fx.GraphModule]) -> torch.fx.GraphModule:
    """Record twice; raise NotTraceableError if this fails, the results differ, or it changes the module."""
    before = _plain_values(model)
    try:
        with warnings.catch_warnings():
            # Errors instead of "There is a performance drop": vmap would loop over the microbatches.
            warnings.simplefilter("error", UserWarning)
            graph, again = record(), record()
    except Exception as error:
        if "in-place" in str(error):
            raise NotTraceableError("its forward changes a buffer") from error
        lines = str(error).strip().splitlines()
        raise NotTraceableError(f"recording failed: {lines[0] if lines else type(error).__name__}") from error
    if graph.code != again.code:
        raise NotTraceableError("its forward differs from pass to pass")
    if _plain_values(model) != before:
        raise NotTraceableError("its forward changes the module")
    if any(map(_changes_an_input, graph.graph.nodes)):
        raise NotTraceableError("its forward changes a buffer")
    return graph


def _plain_values(model: nn.Module) -> list[dict[str, Any]]:
    plain = (int, float, str, bool, type(None))
    return [{key: value for key, value in vars(one).items() if isinstance(value, plain)} for one in model.modules()]


def _changes_an_input(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    first = node.args[0] if node.args else None
    is_input = isinstance(first, torch.fx.Node) and first.op == "placeholder"
    return is_input and schema is not None and bool(schema.is_mutable)


def data_of(microbatches: Microbatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return inputs, targets and weights."""
    return microbatches.inputs, microbatches.targets, microbatches.weights


def random_microbatches(example: Microbatch, num_microbatches: int) -> Microbatch:
    """Return microbatches of normal random numbers (k, b, ...), shaped and typed as `example`, equal on all ranks."""
    generator = torch.Generator().manual_seed(0)
    drawn = [
        torch.randn((num_microbatches, *tensor.shape), generator=generator).to(tensor.dtype)
        for tensor in (example.inputs, example.targets, example.weights)
    ]
    return Microbatch(example.virtual_rank, drawn[0], drawn[1], drawn[2].abs())


def record_gradient(
    request: EngineRequest, ranks: Ranks, model: nn.Module, example: Microbatch, target_weights: tuple[float, ...] = ()
) -> TracedGradient | str:
    """Return the recorded gradient, or the reason why some rank cannot record it, the same on all ranks. Collective."""
    if (lacking := _not_traceable(request, ranks.device, model)) is not None:
        return lacking
    recorded: TracedGradient | str
    torchs_own = logging.getLogger("torch._subclasses.fake_tensor")  # the engine choice reports the reason in one line
    level = torchs_own.level
    torchs_own.setLevel(logging.CRITICAL)
    try:
        recorded = TracedGradient(model, request.training.loss_function, example, target_weights)
    except NotTraceableError as error:
        recorded = f"the network cannot be traced: {error}"
    finally:
        torchs_own.setLevel(level)
    found = ranks.gather_object(recorded if isinstance(recorded, str) else None)
    return next(filter(None, found), recorded)


def _not_traceable(request: EngineRequest, device: Device, model: nn.Module) -> str | None:
    """Return the setting or layer that the traced step does not support, whatever the forward pass; None if none."""
    if (obstacle := request.needs_autograd(device)) is not None:
        return obstacle
    if request.training.gradient_accumulation_steps > 1:
        return "training.gradient_accumulation_steps needs autograd"
    return "batch norm needs sums over all microbatches" if batch_norm_layers(model) else None
