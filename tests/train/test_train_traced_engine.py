"""The traced engine: autograd's gradients, one hash on any number of ranks however tiles are cut, and its limits."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from played_runs import fields, fitted_hashes, points, run_alone
from torch import nn

from mpitrain.data.dataset.batches import Microbatch
from mpitrain.train.losses.built_in import MeanSquaredError
from mpitrain.train.traced import engine as traced
from mpitrain.train.traced.gradient import NotTraceableError, TracedGradient

RESIDUAL = "model.name=networks_of_users:Residual"
UNET = (
    "model.name=unet", "model.hidden_layers=1", "model.hidden_size=3", "data.samples=fields",
    "training.global_batch_size=16", "training.engine=traced",
)  # fmt: skip
CASES = {
    "residual": ((RESIDUAL,), points),
    "residual, sgd, clipped": (
        (RESIDUAL, "training.optimizer.type=sgd", "training.optimizer.momentum=0.9", "training.gradient_clip_norm=0.1"),
        points,
    ),
    "shared layers": (("model.name=networks_of_users:Shared",), points),
    "mlp, huber": (("model.name=mlp", "training.engine=traced", "training.loss_function=huber"), points),
    "unet, weight decay": ((*UNET, "training.optimizer.type=adamw", "training.optimizer.weight_decay=0.1"), fields),
}


@pytest.fixture(autouse=True)
def _users_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    sys.modules.pop("networks_of_users", None)


@pytest.mark.parametrize("name", CASES)
def test_trains_as_autograd_does(name: str) -> None:
    settings, samples = CASES[name]
    settings = (*settings, "training.dtype=float64", "data.validation_split=0.2")
    own, eager = (run_alone(*settings, *more, samples=samples()).fit() for more in ((), ("training.engine=eager",)))
    assert (own.parts.choice.name, eager.parts.choice.name) == ("traced", "eager")
    torch.testing.assert_close(own.weights(), eager.weights(), rtol=1e-9, atol=1e-12)
    assert own.trainer.state.train_loss == pytest.approx(eager.trainer.state.train_loss, rel=1e-10)
    assert own.trainer.state.validation_loss == pytest.approx(eager.trainer.state.validation_loss, rel=1e-10)


@pytest.mark.parametrize("draws", [False, True], ids=["plain", "dropout"])
@pytest.mark.parametrize("tile_size", [1, 2, 8])
def test_one_hash_on_any_number_of_ranks(monkeypatch: pytest.MonkeyPatch, tile_size: int, draws: bool) -> None:
    monkeypatch.setattr(traced, "tile_size", lambda *_: tile_size)
    settings = ("model.name=mlp", "training.engine=traced", "model.dropout=0.2") if draws else (RESIDUAL,)
    (one,) = fitted_hashes(1, *settings, samples=points())
    assert fitted_hashes(3, *settings, samples=points()) == [one] * 3


def test_the_size_of_a_tile_follows_network_and_batch_alone() -> None:
    def example(rows: int, *shape: int) -> Microbatch:
        return Microbatch(0, torch.zeros(rows, 7, *shape), torch.zeros(rows, 2, *shape), torch.ones(rows, 1, *shape))

    sizes = [traced.tile_size(example(rows), 1 << 12, 8) for rows in (1, 8, 32, 33, 64, 128, 129, 10**6)]
    assert sizes == [8, 8, 8, 4, 4, 2, 1, 1]
    assert traced.tile_size(example(1, 16, 16), 1 << 10, 8) == 4
    assert traced.tile_size(example(8), 100, 2) == 2


class _Random(nn.Linear):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs) + torch.rand(len(inputs), 1)


class _Branching(nn.Linear):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs if inputs.mean() > 0 else -inputs)


class _Counting(nn.Linear):
    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__(num_inputs, num_outputs)
        self.register_buffer("num_calls", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1  # type: ignore[operator]
        return super().forward(inputs)


class _SlowlyChanging(nn.Linear):
    passes = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return super().forward(inputs) * (1 + self.passes // 1000)


class _Numbering(nn.Linear):
    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__(num_inputs, num_outputs)
        self.factors: list[float] = [1.0]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.factors.append(self.factors[-1] / 2)
        return super().forward(inputs) * self.factors[-1]


EXAMPLE = Microbatch(0, torch.randn(5, 3), torch.randn(5, 2), torch.ones(5, 1))


@pytest.mark.parametrize(
    ("network", "said"),
    [(_Branching, "recording failed"), (_Counting, "changes a buffer"), (_SlowlyChanging, "changes the module"),
     (_Numbering, "differs from pass to pass")],
)  # fmt: skip
def test_what_cannot_be_repeated_is_not_traced(network: type[nn.Module], said: str) -> None:
    with pytest.raises(NotTraceableError, match=said):
        TracedGradient(network(3, 2), MeanSquaredError(), EXAMPLE)


def test_random_numbers_of_a_forward_pass_are_noticed() -> None:
    assert TracedGradient(_Random(3, 2), MeanSquaredError(), EXAMPLE).draws_numbers
    assert not TracedGradient(nn.Linear(3, 2), MeanSquaredError(), EXAMPLE).draws_numbers


def test_a_network_that_is_not_traced_trains_eagerly_and_says_why() -> None:
    choice = run_alone("model.name=networks_of_users:Branching").parts.choice
    assert choice.name == "eager"
    assert choice.reason.startswith("the network cannot be traced: its forward ")
