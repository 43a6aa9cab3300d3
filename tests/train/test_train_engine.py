"""The eager engine: the exact mean gradient of each batch, in the same bits on any number of (played) ranks."""

import math
import threading

import numpy as np
import pytest
import torch
from networks import build_icenet
from played_ranks import on_played_ranks, played_ranks_of
from played_runs import RATE, one_step
from tensors_of_data import as_tensors, numpy_type
from torch import nn

from mpitrain.comm.virtual_ranks import VirtualRanks
from mpitrain.config import load_run_config
from mpitrain.data.dataset.batches import Microbatch, VirtualRankBatches, plan_batches
from mpitrain.data.dataset.exchange import take_share
from mpitrain.data.dataset.in_memory import distribute
from mpitrain.data.dataset.split_rule import SplitRule
from mpitrain.data.samples import Samples
from mpitrain.train.engines.eager import EagerEngine
from mpitrain.train.engines.standard import EngineInputs
from mpitrain.train.engines.torch_engine import sum_losses
from mpitrain.train.losses.built_in import MeanSquaredError
from mpitrain.train.losses.weighted import WeightedLoss

V, SEED = 8, 3
_ONE_AT_A_TIME = threading.Lock()


def make_samples(num_samples):
    generator = np.random.default_rng(7)
    inputs = generator.normal([0, 30, -10], [1, 2, 0.1], size=(num_samples, 3)).astype(np.float32)
    targets = generator.random(num_samples).astype(np.float32)
    return Samples(inputs, targets[:, None], np.arange(num_samples), ("a", "b", "c"))


class Played:
    """One rank's engine with what it was made of; plain SGD, so that a parameter's step is its gradient."""

    def __init__(self, communicator, num_samples, batch_size, dtype, reduction="fixed", split=0.2):
        self.ranks = played_ranks_of(communicator, reduction)
        self.layout = VirtualRanks(V, communicator.size, communicator.rank)
        own = take_share(make_samples(num_samples), self.ranks)
        self.data = as_tensors(distribute(own, self.ranks, self.layout, SplitRule(0.0, split, SEED), numpy_type(dtype)))
        with _ONE_AT_A_TIME:  # torch's random state is the process's, not the thread's
            self.model = build_icenet(3, 5, "none", SEED, dtype)
        with torch.no_grad():
            normalization = self.data.summary.normalization
            self.model.set_normalization(normalization.mean, normalization.std)
        self.plan = plan_batches(self.data.summary.num_training_samples, batch_size, V)
        self.make_engine()

    def make_engine(self):
        batches, held_out = self.data.microbatches(self.plan, SEED, True), self.data.evaluation()
        config = load_run_config(None, [f"seed={SEED}", "training.optimizer.type=sgd"]).config
        self.engine = EagerEngine(
            EngineInputs(
                self.model,
                batches,
                held_out,
                self.plan,
                self.layout,
                self.ranks,
                config.training,
                config.distributed,
                config.seed,
            )
        )

    def flat(self, what="data"):
        return torch.cat([getattr(parameter, what).detach().reshape(-1) for parameter in self.model.parameters()])

    def batch(self, step):
        """Inputs and targets of one batch of epoch 0: all virtual ranks' slices without their padding."""
        slices = []
        for own in self.data.training:
            batches = VirtualRankBatches(own, self.plan, SEED, True)
            batches.start_epoch(0)
            slices.append(batches.microbatch(step))
        inputs, targets, weights = (
            torch.cat([getattr(piece, n) for piece in slices]) for n in ("inputs", "targets", "weights")
        )
        is_sample = weights[:, 0] == 1
        return inputs[is_sample], targets[is_sample]


def mean_loss(model, inputs, targets):
    return nn.functional.mse_loss(model(inputs), targets)


@pytest.mark.parametrize("batch_size", ["full", 24, 61])
@pytest.mark.parametrize("num_samples", [5, 97, 160])
def test_the_applied_gradient_is_the_exact_mean_over_the_batch(num_samples, batch_size):
    def body(communicator):
        played = Played(communicator, num_samples, batch_size, torch.float64)
        seen = 0
        played.engine.start_epoch(0)
        for step in range(played.engine.steps_per_epoch):
            inputs, targets = played.batch(step)
            seen += len(targets)
            loss = mean_loss(played.model, inputs, targets)
            expected = torch.cat([g.view(-1) for g in torch.autograd.grad(loss, list(played.model.parameters()))])
            before = played.flat()
            result = one_step(played.engine, step, RATE)
            torch.testing.assert_close(played.flat("grad"), expected, rtol=1e-11, atol=1e-15)
            torch.testing.assert_close(before - played.flat(), RATE * expected, rtol=1e-9, atol=1e-15)
            assert result.loss == pytest.approx(loss.item(), rel=1e-13)
            assert result.stop_requested is False
        assert seen == played.data.summary.num_training_samples

    on_played_ranks(1, body)


def test_a_full_batch_is_the_gradient_of_the_whole_training_set():
    def body(communicator):
        played = Played(communicator, 101, "full", torch.float64)
        inputs = torch.cat([own.inputs for own in played.data.training])
        targets = torch.cat([own.targets for own in played.data.training])
        assert played.plan.global_batch_size > len(targets), "no slice is padded"
        expected = torch.autograd.grad(mean_loss(played.model, inputs, targets), list(played.model.parameters()))
        played.engine.start_epoch(0)
        one_step(played.engine, 0, RATE)
        torch.testing.assert_close(
            played.flat("grad"), torch.cat([g.view(-1) for g in expected]), rtol=1e-11, atol=1e-15
        )

    on_played_ranks(1, body)


def two_epochs(num_ranks, reduction="fixed", num_samples=203):
    def body(communicator):
        played = Played(communicator, num_samples, 48, torch.float32, reduction)
        losses = []
        for epoch in range(2):
            played.engine.start_epoch(epoch)
            losses += [one_step(played.engine, step, RATE).loss for step in range(played.engine.steps_per_epoch)]
            losses += [played.engine.epoch_loss(), played.engine.validation_loss()]
        return played.flat(), losses, played.engine.gather_state()["epoch_loss_sums"]

    return on_played_ranks(num_ranks, body)


@pytest.mark.parametrize("num_samples", [5, 203])
@pytest.mark.parametrize("num_ranks", [2, 3, 4, 5, 8])
def test_weights_and_losses_have_the_same_bits_on_any_number_of_ranks(num_ranks, num_samples):
    ((weights, losses, sums),) = two_epochs(1, num_samples=num_samples)
    for other_weights, other_losses, other_sums in two_epochs(num_ranks, num_samples=num_samples):
        assert torch.equal(other_weights, weights)
        assert str(other_losses) == str(losses)  # None and NaN compare too
        assert np.array_equal(other_sums, sums)


def test_the_librarys_order_gives_the_same_to_rounding():
    ((weights, losses, _),) = two_epochs(1)
    for other_weights, other_losses, _ in two_epochs(3, "any"):
        torch.testing.assert_close(other_weights, weights, rtol=1e-4, atol=1e-6)
        assert other_losses == pytest.approx(losses, rel=1e-5)


def test_losses_of_an_epoch_are_over_all_samples():
    def body(communicator):
        played = Played(communicator, 203, 48, torch.float64)
        played.engine.start_epoch(0)
        expected = 0.0
        for step in range(played.engine.steps_per_epoch):
            batch = played.batch(step)
            expected += mean_loss(played.model, *batch).item() * len(batch[1])
            one_step(played.engine, step, RATE)
        assert played.engine.epoch_loss() == pytest.approx(
            expected / played.data.summary.num_training_samples, rel=1e-12
        )
        held_out = [torch.cat([getattr(own, n) for own in played.data.validation]) for n in ("inputs", "targets")]
        assert played.engine.validation_loss() == pytest.approx(mean_loss(played.model, *held_out).item(), rel=1e-12)
        played.engine.start_epoch(1)
        assert played.engine.epoch_loss() == 0, "the last epoch's losses are not forgotten"

    on_played_ranks(1, body)


def test_without_held_out_samples_there_is_no_validation_loss():
    def body(communicator):
        return Played(communicator, 40, 16, torch.float32, split=0.0).engine.validation_loss()

    assert on_played_ranks(2, body) == [None, None]


@pytest.mark.parametrize("asking_rank", [0, 2])
def test_one_ranks_request_stops_all(asking_rank):
    def body(communicator):
        engine = Played(communicator, 40, 16, torch.float32).engine
        engine.start_epoch(0)
        return [
            one_step(engine, step, RATE, communicator.rank == asking_rank and step == 1).stop_requested
            for step in (0, 1)
        ]

    assert on_played_ranks(3, body) == [[False, True]] * 3


def test_losses_survive_a_checkpoint_on_another_number_of_ranks():
    def first(communicator):
        engine = Played(communicator, 203, 48, torch.float32).engine
        engine.start_epoch(0)
        one_step(engine, 0, RATE)
        return engine.gather_state()["epoch_loss_sums"], engine.epoch_loss()

    def second(communicator):
        engine = Played(communicator, 203, 48, torch.float32).engine
        engine.start_epoch(0)
        engine.restore_state({"epoch_loss_sums": sums})
        return engine.epoch_loss()

    (sums, loss), *others = on_played_ranks(2, first)
    assert sums.shape == (V, 2)
    assert sums.dtype == np.float64
    assert np.array_equal(others[0][0], sums)
    assert on_played_ranks(3, second) == [loss] * 3


def test_a_failure_names_rank_and_virtual_ranks():
    def body(communicator):
        played = Played(communicator, 203, 48, torch.float32)
        if communicator.rank == 1:  # its third virtual rank, number 6
            played.data.training[2].padded_inputs.fill_(math.nan)
            played.make_engine()
        played.engine.start_epoch(0)
        result = one_step(played.engine, 0, RATE)
        return math.isnan(result.loss), played.engine.describe_failure()

    assert on_played_ranks(2, body) == [(True, "rank 1 on here, virtual ranks [6]")] * 2


def test_padding_weighs_nothing_even_where_its_error_is_large():
    outputs = torch.tensor([[0.5], [0.25], [1000.0]], requires_grad=True)
    piece = Microbatch(0, torch.zeros(3, 1), torch.tensor([[1.0], [0.0], [0.0]]), torch.tensor([[1.0], [1.0], [0.0]]))
    loss, weight = WeightedLoss(MeanSquaredError().build()).sums(outputs, piece)
    assert weight.item() == 2
    assert loss.item() == 0.25 + 0.0625
    (gradient,) = torch.autograd.grad(loss, outputs)
    assert gradient.view(-1).tolist() == [-1.0, 0.5, 0.0]


def test_losses_of_samples_add_in_double_precision():
    def body(communicator):
        played = Played(communicator, 203, 48, torch.float32)
        own = played.data.validation[1]
        with torch.no_grad():
            errors = (played.model(own.inputs) - own.targets)[:, 0]
        found, weight = sum_losses(played.model, WeightedLoss(MeanSquaredError().build()), own)
        assert found.dtype == torch.float64
        assert weight.item() == len(own)
        assert found.item() == pytest.approx(math.fsum((errors**2).tolist()), rel=1e-14)

    on_played_ranks(1, body)


def test_evaluated_losses_count_targets_by_their_weights():
    piece = Microbatch(0, torch.zeros(2, 1), torch.zeros(2, 2), torch.tensor([[1.0], [3.0]]))
    loss = WeightedLoss(MeanSquaredError().build(), target_weights=torch.tensor([1.0, 2.0]))
    outputs = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert loss.double_sums(outputs, piece).tolist() == [1 * 1 + 2 * 4 + 3 * 9 + 6 * 16, 1 + 2 + 3 + 6]
    assert torch.equal(loss.sums_by_target(outputs, piece).sum(0), loss.double_sums(outputs, piece))
