"""Norms, dropout and SiLU in the compiled step: the eager engine's numbers, and one hash on any number of ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from played_runs import MLP, Run, fitted_hashes, points, run_alone
from torch import nn

from mpitrain.data.random_streams import Stream, keyed_words
from mpitrain.models.batch_norm import batch_norm_layers
from mpitrain.models.dense_module import torch_view
from mpitrain.train.engines import autograd

# 102 samples are left: three full batches of 32, and one whose microbatches have one row or none.
EXACT = ("training.dtype=float64", "data.validation_split=0.15")
NORM, DROPOUT = "model.batch_norm=true", "model.dropout=0.3"
LAYER_NORM, RESIDUAL, SILU = "model.layer_norm=true", "model.residual=true", "model.hidden_activation=silu"
WORD = (1 << 64) - 1


def compared(*settings: str) -> tuple[Run, Run]:
    """The same run by the compiled and by the eager engine."""
    runs = [run_alone(*MLP, *EXACT, *settings, *more).fit() for more in ((), ("training.engine=eager",))]
    assert [run.parts.choice.name for run in runs] == ["compiled", "eager"]
    return runs[0], runs[1]


def check_equal(own: Run, eager: Run) -> None:
    # A microbatch of one row has no variance: its rounding errors are multiplied by 1 / sqrt(1e-5), there and back.
    torch.testing.assert_close(own.weights(), eager.weights(), rtol=1e-9, atol=2e-11)
    for loss in ("train_loss", "validation_loss"):
        assert getattr(own.trainer.state, loss) == pytest.approx(getattr(eager.trainer.state, loss), rel=1e-10)


@pytest.mark.parametrize("more", [(), ("training.reduction=any",), ("model.hidden_activation=relu",),
                                  ("model.hidden_size=1", "model.hidden_layers=3"),
                                  ("training.global_batch_size=92",)], ids=" ".join)  # fmt: skip
def test_batch_norm_is_the_eager_engine_s(more: tuple[str, ...]) -> None:
    own, eager = compared(NORM, *more)
    check_equal(own, eager)
    tracked = [
        [int(layer.num_batches_tracked) for layer in batch_norm_layers(torch_view(run.model))] for run in (own, eager)
    ]
    assert tracked[0] == tracked[1]
    assert min(tracked[0]) > 0


@pytest.mark.parametrize("more", [(), ("training.reduction=any", "training.global_batch_size=92"),
                                  ("model.hidden_size=2", "model.hidden_layers=3"), ("model.hidden_size=33", SILU)],
                         ids=" ".join)  # fmt: skip
def test_layer_norm_is_the_eager_engine_s(more: tuple[str, ...]) -> None:
    own, eager = compared(LAYER_NORM, *more)
    torch.testing.assert_close(own.weights(), eager.weights(), rtol=1e-9, atol=1e-11)
    assert own.trainer.state.validation_loss == pytest.approx(eager.trainer.state.validation_loss, rel=1e-10)
    # Scale and offset are learnt: they begin at 1 and 0.
    norms = [module for module in torch_view(own.model).modules() if isinstance(module, nn.LayerNorm)]
    assert all(bool((norm.weight != 1).all() and (norm.bias != 0).all()) for norm in norms if norm.weight.numel() > 1)
    assert len(norms) >= 2


@pytest.mark.parametrize("more", [("model.hidden_layers=4", "model.hidden_activation=relu"),
                                  (LAYER_NORM, "model.hidden_layers=3", SILU), (NORM,),
                                  ("model.hidden_size=1", "training.reduction=any", "training.global_batch_size=92")],
                         ids=" ".join)  # fmt: skip
def test_residual_connections_are_the_eager_engine_s(more: tuple[str, ...]) -> None:
    check_equal(*compared(RESIDUAL, *more))


def test_silu_is_the_eager_engine_s() -> None:
    check_equal(*compared(SILU, "model.output_activation=silu"))


def drawn(key: int, rows: int, units: int, probability: float) -> np.ndarray:
    """What the kernel multiplies the units of a layer by (rows, units), written again."""
    low, high = np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)
    with np.errstate(over="ignore"):
        bits = np.arange(rows * units, dtype=np.uint32) * np.uint32(0x9E3779B1) + low
        bits = (bits ^ (bits >> np.uint32(16))) * np.uint32(0x85EBCA6B) + high
        bits = (bits ^ (bits >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        bits ^= bits >> np.uint32(16)
    kept = (bits >> np.uint32(8)) >= np.uint32(int(probability * (1 << 24)))
    return np.where(kept, 1 / (1 - probability), 0.0).reshape(rows, units)


def key_of(key: int, index: int) -> int:
    bits = (key + 0x9E3779B97F4A7C15 * (index + 1)) & WORD
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & WORD
    return bits ^ (bits >> 31)


@pytest.mark.parametrize(
    # With dropout, units of few rows have hardly any variance, and rounding errors are large: 8 microbatches of 32.
    "more",
    [(), (NORM, "training.virtual_ranks=8"), (LAYER_NORM, RESIDUAL)],
    ids=["dropout", "batch norm too", "layer norm, residual"],
)
def test_dropout_is_the_eager_engine_s_with_the_kernel_s_draws(
    monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    keys: Iterator[int] = iter(())

    def noted(seed: int, epoch: int, step: int, microbatch: int, _part: int = 0) -> None:
        nonlocal keys
        epoch_key = int(keyed_words((seed, Stream.STEP, epoch), 1)[0])
        microbatch_key = key_of(key_of(epoch_key, step), microbatch)
        keys = (key_of(microbatch_key, layer) for layer in itertools.count())

    def dropped(layer: nn.Dropout, inputs: torch.Tensor) -> torch.Tensor:
        if not layer.training:
            return inputs
        return inputs * torch.from_numpy(drawn(next(keys), *inputs.shape, layer.p))

    monkeypatch.setattr(autograd, "seed_stream", noted)
    monkeypatch.setattr(nn.Dropout, "forward", dropped)
    check_equal(*compared(DROPOUT, *more))


def test_as_many_units_are_dropped_as_asked() -> None:
    kept = np.concatenate([drawn(key_of(3, number), 64, 100, 0.3) for number in range(100)])
    assert np.mean(kept == 0) == pytest.approx(0.3, abs=5 * np.sqrt(0.3 * 0.7 / kept.size))
    assert kept.mean() == pytest.approx(1, abs=0.005)
    # No row, no unit and no pair of neighbours is drawn otherwise than the rest.
    assert np.corrcoef(kept[:, :-1].reshape(-1), kept[:, 1:].reshape(-1))[0, 1] == pytest.approx(0, abs=0.01)
    assert np.ptp((kept == 0).mean(axis=0)) < 0.05


@pytest.mark.parametrize(
    "more", [(NORM,), (DROPOUT,), (NORM, DROPOUT), (LAYER_NORM, DROPOUT, SILU, RESIDUAL)], ids=" ".join
)
def test_one_hash_on_any_number_of_ranks(more: tuple[str, ...]) -> None:
    (one,) = fitted_hashes(1, *MLP, *more, samples=points())
    assert fitted_hashes(3, *MLP, *more, samples=points()) == [one] * 3
    assert fitted_hashes(1, *MLP, *more, "seed=5", samples=points()) != [one]
