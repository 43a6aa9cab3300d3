"""How each fault is planted: a function of the package is replaced by one that makes the mistake."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import numpy as np
import torch

from mpitrain.comm import reduction
from mpitrain.comm.session import Session
from mpitrain.data import samples as samples_module
from mpitrain.data.dataset import in_memory as training_data
from mpitrain.data.dataset import reference as reference_data
from mpitrain.data.samples import Samples
from mpitrain.models.icenet import IceNet
from mpitrain.runs import model as model_setup
from mpitrain.runs import prepare as setup
from mpitrain.train.engines import eager as eager_engine
from mpitrain.train.engines.reference import ReferenceEngine
from mpitrain.train.losses import WeightedLoss
from mpitrain.train.optimizers import LibtorchAdam
from mpitrain.verify import recorder

Plant = Callable[[ExitStack], None]


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> Plant:
    """Return a plant that replaces `owner.name` by `make(original)`."""
    return lambda stack: stack.enter_context(mock.patch.object(owner, name, make(getattr(owner, name))))


def _all_of(*plants: Plant) -> Plant:
    def plant(stack: ExitStack) -> None:
        for single in plants:
            single(stack)

    return plant


def _select(change: Callable[..., tuple[Any, ...]]) -> Plant:
    return _replace(samples_module, "select_points", lambda select: lambda *arguments: select(*change(*arguments)))


def _contiguous(_: Any) -> Any:
    def partition(grid_index: Any, world_size: int, rank: int) -> Any:
        count = len(grid_index)
        return np.arange(rank * count // world_size, (rank + 1) * count // world_size)

    return partition


def _untruncated(original: Any) -> Any:
    return lambda samples, session, dtype: original(samples, _WithoutMinimum(session), dtype)


class _WithoutMinimum:
    """A session whose ranks do not agree on the smallest number of samples; sums still reach everybody."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.control = self

    def all_reduce(self, tensor: torch.Tensor, operation: str = "sum") -> None:
        if operation == "sum":
            self._session.all_reduce(tensor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


def _moments(change: Callable[[torch.Tensor, Session], tuple[torch.Tensor, torch.Tensor]]) -> Plant:
    return _replace(reference_data, "_one_pass_moments", lambda _: change)


def _sample_variance(original: Any) -> Any:
    def moments(inputs: torch.Tensor, session: Session) -> Any:
        mean, std = original(inputs, session)
        count = len(inputs) * session.ranks.world_size
        return mean, std * math.sqrt(count / (count - 1))

    return moments


def _mean_of_means(inputs: torch.Tensor, session: Session) -> Any:
    parts = session.gather_object((inputs.double().mean(dim=0), inputs.double().pow(2).mean(dim=0)))
    mean, square = (torch.stack(column).mean(dim=0) for column in zip(*parts, strict=True))
    return mean.to(inputs.dtype), (square - mean**2).sqrt().to(inputs.dtype)


def _float64_moments(inputs: torch.Tensor, session: Session) -> Any:
    sums, squares = inputs.double().sum(dim=0), inputs.double().pow(2).sum(dim=0)
    session.all_reduce(sums)
    session.all_reduce(squares)
    count = torch.tensor(float(len(inputs)), dtype=torch.float64)
    session.all_reduce(count)
    mean = sums / count
    return mean.to(inputs.dtype), (squares / count - mean**2).sqrt().to(inputs.dtype)


def _swapped_inputs(original: Any) -> Any:
    def read(*arguments: Any) -> Samples:
        samples: Samples = original(*arguments)
        order = [0, 1, 2, 3, 5, 4, 6]
        return dataclasses.replace(samples, inputs=samples.inputs[:, order])

    return read


def _unweighted_merge(_: Any) -> Any:
    def merge(local: list[Any], communicator: Any, virtual_ranks: Any) -> Any:
        everyone = [moments for part in communicator.all_gather_object(local) for moments in part]
        count = sum(moments.count for moments in everyone)
        mean = np.mean([moments.mean for moments in everyone], axis=0)
        variance = np.mean([moments.m2 / moments.count for moments in everyone], axis=0)
        low = np.min([moments.minimum for moments in everyone], axis=0)
        high = np.max([moments.maximum for moments in everyone], axis=0)
        return type(local[0])(count, mean, variance * count, low, high)

    return merge


def _statistics_of_all(original: Any) -> Any:
    def share_out(
        samples: Samples, session: Session, virtual_ranks: Any, fraction: float, seed: int, dtype: Any
    ) -> Any:
        data = original(samples, session, virtual_ranks, fraction, seed, dtype)
        everything = original(samples, session, virtual_ranks, 0.0, seed, dtype)
        summary = dataclasses.replace(data.summary, normalization=everything.summary.normalization)
        return dataclasses.replace(data, summary=summary)

    return share_out


def _next_seed(original: Any) -> Any:
    return lambda settings, inputs, outputs, seed, dtype: original(settings, inputs, outputs, seed + 1, dtype)


def _with_activation(_: Any) -> Any:
    def forward(model: IceNet, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.sigmoid(model.fc1((inputs - model.input_mean) / model.input_std))
        return torch.sigmoid(model.fc2(hidden))

    return forward


def _lost_gradient(original: Any) -> Any:
    def step(engine: ReferenceEngine, *arguments: Any) -> Any:
        session = engine._session
        lose = session.ranks.rank == session.ranks.world_size - 1

        def all_reduce(this: Session, tensor: torch.Tensor, operation: Any = "sum") -> None:
            if lose:
                tensor.zero_()
            this.data.all_reduce(tensor, operation)

        with mock.patch.object(Session, "all_reduce", all_reduce):
            return original(engine, *arguments)

    return step


def _scaled_first(original: Any) -> Any:
    def step(engine: ReferenceEngine, *arguments: Any) -> Any:
        divisor, engine._divisor = engine._divisor, 1.0

        def all_reduce(this: Session, tensor: torch.Tensor, operation: Any = "sum") -> None:
            tensor /= divisor
            this.data.all_reduce(tensor, operation)

        with mock.patch.object(Session, "all_reduce", all_reduce):
            try:
                return original(engine, *arguments)
            finally:
                engine._divisor = divisor

    return step


def _divide_by_ranks(original: Any) -> Any:
    def initialise(engine: ReferenceEngine, *arguments: Any) -> None:
        original(engine, *arguments)
        engine._divisor = float(engine._session.ranks.world_size)

    return initialise


def _linear_order(original: Any) -> Any:
    def combine_in_line(rows: torch.Tensor, combine: Any = torch.add) -> torch.Tensor:
        in_tree: torch.Tensor = original(rows, combine)
        if combine is not torch.add or rows.shape[1] < 4:
            return in_tree
        total = rows[0]
        for row in rows[1:]:
            total = total + row
        return torch.cat([total[:-3], in_tree[-3:]])  # the gradient alone; losses keep the tree

    return combine_in_line


def _padding_counted(original: Any) -> Any:
    return lambda loss, outputs, piece: original(loss, outputs, _with_unit_weights(piece))


def _with_unit_weights(piece: Any) -> Any:
    return dataclasses.replace(piece, weights=torch.ones_like(piece.weights))


def _mean_of_slices(original: Any) -> Any:
    def write_partial(engine: Any, row: torch.Tensor, number: int, piece: Any, step: int) -> None:
        original(engine, row, number, piece, step)
        # Each slice's gradient is divided by its own weight: right only while all slices are full.
        own = piece.weights.sum().clamp(min=1.0)
        row[:-3] *= len(piece.weights) / own

    return write_partial


def _adam(**faults: Any) -> Plant:
    return _replace(LibtorchAdam, "_update", lambda _: _faulty_update(**faults))


def _faulty_update(lerp: bool = False, eps_inside: bool = False, off_by_one: bool = False) -> Any:
    def update(optimizer: LibtorchAdam, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        state = optimizer.state[parameter]
        if not state:
            state.update(
                step=torch.tensor(0.0), exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter)
            )
        state["step"] += 1
        t = int(state["step"]) + (1 if off_by_one else 0)
        beta1, beta2 = group["betas"]
        m, v = state["exp_avg"], state["exp_avg_sq"]
        m.lerp_(gradient, 1 - beta1) if lerp else m.mul_(beta1).add_(gradient, alpha=1 - beta1)
        v.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        correction = (1 - beta2**t) ** 0.5
        denominator = (
            (v + group["eps"]).sqrt() / correction if eps_inside else (v.sqrt() / correction).add_(group["eps"])
        )
        parameter.addcdiv_(m, denominator, value=-group["lr"] / (1 - beta1**t))

    return update


def _jacobian_without_std(original: Any) -> Any:
    def jacobian(model: IceNet, inputs: torch.Tensor) -> Any:
        outputs, derivatives = original(model, inputs)
        return outputs, derivatives * model.input_std

    return jacobian


PLANTS: dict[str, Plant] = {
    "wrong pole": _select(
        lambda lat, mask, aice, pole, clean: (lat, mask, aice, {"north": "south", "south": "north"}[pole], clean)
    ),
    "aice < 1 for aice <= 1": _select(
        lambda lat, mask, aice, pole, clean: (lat, mask, np.where(aice == 1, np.nan, aice), pole, clean)
    ),
    "latitude >= 40 for > 40": _select(
        lambda lat, mask, aice, pole, clean: (np.where(lat == 40, 40.1, lat), mask, aice, pole, clean)
    ),
    "mask ignored": _select(
        lambda lat, mask, aice, pole, clean: (lat, np.where(aice < 1e29, 1, mask), aice, pole, clean)
    ),
    "contiguous partition for round robin": _replace(reference_data, "round_robin", _contiguous),
    "no truncation to the smallest rank": _all_of(
        _replace(setup, "share_out_as_reference", _untruncated),
        _moments(_float64_moments),  # the one-pass sums with unequal counts would be no number at all
    ),
    "sample variance for population variance": _replace(reference_data, "_one_pass_moments", _sample_variance),
    "mean of the ranks' means in float64": _moments(_mean_of_means),
    "float64 statistics": _moments(_float64_moments),
    "hs and hi swapped": _replace(samples_module, "read_samples", _swapped_inputs),
    "unweighted merge of moments": _replace(training_data, "allreduce_moments", _unweighted_merge),
    "validation samples in the statistics": _replace(setup, "share_out", _statistics_of_all),
    "another seed for the weights": _replace(model_setup, "build_model", _next_seed),
    "stale normalisation": _replace(setup, "_set_normalization", lambda _: lambda *arguments: None),
    "activation between the layers": _replace(IceNet, "forward", _with_activation),
    "sum of squares for their mean": _replace(
        torch.nn.functional, "mse_loss", lambda loss: lambda a, b: loss(a, b, reduction="sum")
    ),
    "padding rows counted": _replace(WeightedLoss, "sums", _padding_counted),
    "division by P instead of 7 P": _replace(ReferenceEngine, "__init__", _divide_by_ranks),
    "scaling before the Allreduce": _replace(ReferenceEngine, "take_steps", _scaled_first),
    "a lost rank's gradient": _replace(ReferenceEngine, "take_steps", _lost_gradient),
    "partials added in another order": _replace(reduction, "combine_in_tree", _linear_order),
    "mean of the slices' means": _replace(eager_engine.EagerEngine, "_write_partial", _mean_of_slices),
    "bias correction off by one": _adam(off_by_one=True),
    "eps inside the root": _adam(eps_inside=True),
    "torch's Adam arithmetic": _adam(lerp=True),
    "Jacobian without the division by std": _replace(recorder, "scalar_jacobian", _jacobian_without_std),
}
