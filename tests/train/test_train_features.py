"""Each option of training has its effect, by its formula."""

import math

import pytest
import torch
from played_ranks import on_played_ranks
from played_runs import one_step
from test_train_engine import RATE, SEED, Played

from mpitrain.config import RunConfig, load_run_config
from mpitrain.config.training import LOSSES, SCHEDULES
from mpitrain.errors import ConfigError
from mpitrain.train.checkpoint.compatibility import check_batches, global_batch_size
from mpitrain.train.engines.eager import EagerEngine
from mpitrain.train.engines.standard import EngineInputs
from mpitrain.train.schedules.schedule import learning_rates, scaled_learning_rate
from mpitrain.train.state import TrainingState


class Configured(Played):
    """A played engine with settings of its own."""

    def __init__(self, communicator, *settings):
        self.config = load_run_config(None, ["seed=3", "training.optimizer.type=sgd", *settings]).config
        super().__init__(communicator, 97, 32, torch.float64)

    def make_engine(self):
        batches, held_out = self.data.microbatches(self.plan, SEED, True), self.data.evaluation()
        self.engine = EagerEngine(
            EngineInputs(
                self.model,
                batches,
                held_out,
                self.plan,
                self.layout,
                self.ranks,
                self.config.training,
                self.config.distributed,
                self.config.seed,
            )
        )

    def step(self):
        """Return the change of the weights in one step of plain descent, over the learning rate: the gradient."""
        before = self.flat()
        self.engine.start_epoch(0)
        one_step(self.engine, 0, RATE)
        return (before - self.flat()) / RATE


def gradient_with(*settings):
    return on_played_ranks(1, lambda communicator: Configured(communicator, *settings).step())[0]


def test_accumulating_four_parts_gives_the_gradient_of_the_whole_batch():
    rows_of_a_pass = []

    def body(communicator):
        played = Configured(communicator, "training.gradient_accumulation_steps=4")
        played.model.register_forward_pre_hook(lambda _, inputs: rows_of_a_pass.append(len(inputs[0])))
        return played.step()

    torch.testing.assert_close(on_played_ranks(1, body)[0], gradient_with(), rtol=1e-12, atol=1e-15)
    assert rows_of_a_pass == [1] * 32  # 8 slices of 4 rows, each in 4 parts


def test_clipping_shortens_the_whole_gradient_and_keeps_its_direction():
    whole = gradient_with()
    clipped = gradient_with(f"training.gradient_clip_norm={float(whole.norm()) / 10!r}")
    torch.testing.assert_close(clipped, whole / 10, rtol=1e-4, atol=0)
    untouched = gradient_with(f"training.gradient_clip_norm={float(whole.norm()) * 10!r}")
    torch.testing.assert_close(untouched, whole, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("name", "expected"), [("mse", [0.25, 4.0, 0.0]), ("mae", [0.5, 2.0, 0.0]), ("huber", [0.125, 1.5, 0.0])]
)
def test_losses_are_their_formulas(name, expected):
    errors = torch.tensor([0.5, -2.0, 0.0])
    assert LOSSES.validate(name).build()(errors, torch.zeros(3)).tolist() == expected
    assert torch.equal(gradient_with(f"training.loss_function={name}"), gradient_with()) is (name == "mse")


@pytest.mark.parametrize(
    ("settings", "kind"), [({"type": "adamw"}, torch.optim.AdamW), ({"type": "sgd", "momentum": 0.9}, torch.optim.SGD)]
)
def test_optimisers_are_torch_s_own(settings, kind):
    config = RunConfig.model_validate({"training": {"optimizer": {**settings, "weight_decay": 0.25}}})
    optimizer = config.training.optimizer.build([torch.zeros(1)])
    assert type(optimizer) is kind
    assert optimizer.param_groups[0]["weight_decay"] == 0.25
    assert optimizer.param_groups[0].get("momentum", 0.9) == 0.9


def test_warm_up_rises_linearly_before_any_schedule():
    settings = SCHEDULES.validate({"type": "cosine", "warmup_epochs": 4})
    rates = [learning_rates(settings, 0.8, 12)(epoch, 0) for epoch in range(12)]
    assert rates[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert rates[4:] == pytest.approx([0.4 * (1 + math.cos(math.pi * epoch / 8)) for epoch in range(8)])
    alone = SCHEDULES.validate({"type": "none", "warmup_epochs": 2})
    assert [learning_rates(alone, 1.0, 9)(epoch, 0) for epoch in range(4)] == [0.5, 1.0, 1.0, 1.0]


def test_a_plateau_lowers_the_rate_after_its_patience_and_not_below_the_least():
    state, settings = (
        TrainingState(),
        SCHEDULES.validate({"type": "plateau", "patience": 2, "gamma": 0.1, "min_learning_rate": 0.005}),
    )
    rates = []
    for loss in (1.0, 0.9, 0.95, 0.9, 0.92, 0.8, 0.81, 0.82, 0.83, 0.84, 0.85, 0.86):
        state.record_epoch(loss, None)
        state.watch_plateau(settings.patience)
        rates.append(learning_rates(settings, 1.0, 99)(state.epoch, state.num_plateaus))
    assert rates == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.005])


def test_a_plateau_is_of_the_validation_loss_where_samples_are_held_out():
    state = TrainingState()
    for epoch in range(4):
        state.record_epoch(1.0 - 0.1 * epoch, 0.5)  # training improves, validation does not
        state.watch_plateau(1)
    assert (state.num_plateaus, state.plateau_loss) == (1, 0.5)


def test_the_learning_rate_scales_with_the_global_batch():
    assert [scaled_learning_rate(0.1, how, 4) for how in ("none", "linear", "sqrt")] == pytest.approx([0.1, 0.4, 0.2])


def test_accumulation_counts_in_the_batch_per_rank():
    config = load_run_config(None, ["training.batch_size=16", "training.gradient_accumulation_steps=4"]).config
    assert global_batch_size(config.training, 2) == 128


@pytest.mark.parametrize(
    ("setting", "batch_size", "message"),
    [
        ("training.global_batch_size=99", 99, "there are only 80 training samples"),
        ("training.gradient_accumulation_steps=3", 32, "does not divide the 4 rows"),
    ],
)
def test_batches_that_cannot_be_made_are_refused_in_one_line(setting, batch_size, message):
    from mpitrain.data.dataset.batches import plan_batches

    config = load_run_config(None, [setting]).config
    with pytest.raises(ConfigError, match=message):
        check_batches(config.training, plan_batches(80, min(batch_size, 80), 8), batch_size)
