"""Faults in the network, the gradient, the optimiser and the prediction."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import Any

import torch
from planted_faults.stages import Fault, Stages
from torch import nn

from mpitrain.comm.ranks import Ranks
from mpitrain.comm.reduction import combine_in_tree
from mpitrain.data.dataset.dataset import DataSummary
from mpitrain.data.describe.names import CICE_INPUTS
from mpitrain.models.jacobian import scalar_jacobian
from mpitrain.runs.build import ModelRequest, build_model
from mpitrain.train.losses.weighted import WeightedLoss
from mpitrain.train.optimizers.libtorch_adam import LibtorchAdam

# Of a row of partial sums: the gradient, then loss, weight and stop flag.
_NUM_EXTRAS = 3


def _next_seed(request: ModelRequest, summary: DataSummary, ranks: Ranks) -> nn.Module:
    model: nn.Module = build_model(dataclasses.replace(request, seed=request.seed + 1), summary, ranks)
    return model


def _stale_normalization(request: ModelRequest, summary: DataSummary, ranks: Ranks) -> nn.Module:
    model: nn.Module = build_model(request, summary, ranks)
    with torch.no_grad():
        model.get_buffer("input_mean").zero_()
        model.get_buffer("input_std").fill_(1)
    return model


def _with_activation(request: ModelRequest, summary: DataSummary, ranks: Ranks) -> nn.Module:
    def forward(model: Any, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.sigmoid(model.fc1((inputs - model.input_mean) / model.input_std))
        return torch.sigmoid(model.fc2(hidden))

    model: nn.Module = build_model(request, summary, ranks)
    model.forward = types.MethodType(forward, model)
    return model


def _sum_of_squares(engine: Any) -> None:
    engine.mean_loss = lambda outputs, targets: nn.functional.mse_loss(outputs, targets, reduction="sum")


def _divide_by_ranks(engine: Any) -> None:
    engine.divisor /= len(CICE_INPUTS)


class _WithAllReduce:
    """A ranks whose `all_reduce` makes a mistake before it adds."""

    def __init__(self, ranks: Ranks, spoil: Callable[[torch.Tensor, Ranks], None]) -> None:
        self._ranks, self._spoil = ranks, spoil

    def all_reduce(self, tensor: torch.Tensor) -> None:
        self._spoil(tensor, self._ranks)
        self._ranks.all_reduce(tensor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ranks, name)


def _ranks(spoil: Callable[[torch.Tensor, Ranks], None], **stages: Any) -> Stages:
    make: Any = lambda ranks: _WithAllReduce(ranks, spoil)  # noqa: E731
    return Stages(session_of_engine=make, **stages)


def _scale_first(gradient: torch.Tensor, ranks: Ranks) -> None:
    gradient /= len(CICE_INPUTS) * ranks.world_size


def _lose(gradient: torch.Tensor, ranks: Ranks) -> None:
    if ranks.rank == ranks.world_size - 1:
        gradient.zero_()


def _divide_by_one(engine: Any) -> None:
    engine.divisor = 1.0


class _PaddingCounted(WeightedLoss):
    """Every row weighs 1, also those that fill a microbatch up."""

    def sums(self, outputs: torch.Tensor, piece: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """See `WeightedLoss.sums`."""
        return super().sums(outputs, dataclasses.replace(piece, weights=torch.ones_like(piece.weights)))


def _count_padding(engine: Any) -> None:
    engine.loss = _PaddingCounted(engine.loss.element_losses, engine.loss.output_std)


class _LinearReducer:
    """Adds the gradients of the microbatches one after the other; losses and weights keep the tree."""

    def __init__(self, engine: Any) -> None:
        self._communicator, self._counts = engine.ranks.tensors, engine.inputs.virtual_ranks.counts

    def reduce(self, partials: torch.Tensor) -> torch.Tensor:
        """See `Reducer.reduce`. Collective."""
        rows = self._communicator.all_gather(partials, self._counts)
        total = rows[0]
        for row in rows[1:]:
            total = total + row
        return torch.cat([total[:-_NUM_EXTRAS], combine_in_tree(rows)[-_NUM_EXTRAS:]])


def _add_in_a_line(engine: Any) -> None:
    engine.reducer = _LinearReducer(engine)


class _MeanOfMeans:
    """Divides the gradient of each microbatch by its own weight: right only while all microbatches are full."""

    def __init__(self, engine: Any) -> None:
        self._reducer, self._rows = engine.reducer, engine.plan.microbatch_rows

    def reduce(self, partials: torch.Tensor) -> torch.Tensor:
        """See `Reducer.reduce`. Collective."""
        spoilt = partials.clone()
        spoilt[:, :-_NUM_EXTRAS] *= self._rows / partials[:, -2:-1].clamp(min=1.0)
        return self._reducer.reduce(spoilt)  # type: ignore[no-any-return]


def _mean_of_microbatches(engine: Any) -> None:
    engine.reducer = _MeanOfMeans(engine)


def _adam(**faults: bool) -> Stages:
    def replace_optimizer(engine: Any) -> None:
        group = engine.optimizer.param_groups[0]
        wrong = _WrongAdam(group["params"], lr=group["lr"], betas=group["betas"], eps=group["eps"])
        wrong.faults = faults
        engine.optimizer = wrong

    return Stages(adjust_engine=replace_optimizer)


class _WrongAdam(LibtorchAdam):
    """Adam with one of the usual mistakes."""

    faults: dict[str, bool]

    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        """See `LibtorchAdam.update`."""
        state = self.state_of(parameter)
        state["step"] += 1
        t = int(state["step"]) + (1 if self.faults.get("off_by_one") else 0)
        beta1, beta2 = group["betas"]
        m, v = state["exp_avg"], state["exp_avg_sq"]
        m.lerp_(gradient, 1 - beta1) if self.faults.get("lerp") else m.mul_(beta1).add_(gradient, alpha=1 - beta1)
        v.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        correction = (1 - beta2**t) ** 0.5
        inside = (v + group["eps"]).sqrt() / correction
        denominator = inside if self.faults.get("eps_inside") else (v.sqrt() / correction).add_(group["eps"])
        parameter.addcdiv_(m, denominator, value=-group["lr"] / (1 - beta1**t))


def _jacobian_without_std(model: Any, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    outputs, derivatives = scalar_jacobian(model, inputs)
    return outputs, derivatives * model.input_std


TRAINING_FAULTS = (
    Fault("another seed for the weights", "initial weights", Stages(build_model=_next_seed)),
    Fault("stale normalisation", "forward", Stages(build_model=_stale_normalization)),
    Fault("activation between the layers", "forward", Stages(build_model=_with_activation)),
    Fault("sum of squares for their mean", "loss at step 1", Stages(adjust_engine=_sum_of_squares)),
    Fault("padding rows counted", "loss at step 1", Stages(adjust_engine=_count_padding), "standard"),
    Fault("division by P instead of 7 P", "gradient at step 1", Stages(adjust_engine=_divide_by_ranks)),
    Fault("scaling before the Allreduce", "gradient at step 1", _ranks(_scale_first, adjust_engine=_divide_by_one)),
    Fault("a lost rank's gradient", "gradient at step 1", _ranks(_lose)),
    Fault("partials added in another order", "gradient at step 1", Stages(adjust_engine=_add_in_a_line), "standard"),
    Fault(
        "mean of the microbatches' means", "gradient at step 1", Stages(adjust_engine=_mean_of_microbatches), "standard"
    ),
    Fault("bias correction off by one", "weights at step 1", _adam(off_by_one=True)),
    Fault("eps inside the root", "weights at step 1", _adam(eps_inside=True)),
    Fault("torch's Adam arithmetic", "gradient at step 10", _adam(lerp=True)),
    Fault("Jacobian without the division by std", "Jacobian", Stages(jacobian=_jacobian_without_std)),
)
