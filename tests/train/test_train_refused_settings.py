"""Settings of the training that cannot be: one line each that says what to do, the same on all ranks."""

import re

import pytest
from played_runs import Run, fields, in_turns, points, run_alone

from mpitrain.config import load_run_config
from mpitrain.errors import ConfigError, LaunchError, MpitrainError

FIXED = "training.reduction=fixed"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("training.optimizer.type=adagrad", r"command line: training\.optimizer\.type=adagrad: .*adam, adamw.* sgd"),
        ("training.scheduler.type=linear", r"training\.scheduler\.type=linear: .*step.*cosine.*plateau"),
        ("training.loss_function=rmse", r"training\.loss_function=rmse: .*mse.*mae.*huber"),
        ("training.amp_dtype=float8", r"training\.amp_dtype=float8: .*bfloat16.*float16"),
        ("training.engine=fast", r"training\.engine=fast: .*eager.*compiled.*ddp.*cuda_graph"),
        ("training.gradient_clip_norm=0", r"training\.gradient_clip_norm=0: "),
        ("training.gradient_accumulation_steps=0", r"training\.gradient_accumulation_steps=0: "),
        ("training.batch_size=4 training.global_batch_size=8", r"batch_size=4: not together with .*global_batch_size"),
        (
            "distributed.strategy=ddp training.engine=eager",
            r"engine=eager: not together with .*strategy=ddp; give auto",
        ),
        ("distributed.strategy=ddp training.engine=compiled", r"engine=compiled: not together with .*strategy=ddp"),
        ("distributed.strategy=single training.engine=ddp", r"engine=ddp: not together with .*strategy=single; remove"),
        ("distributed.strategy=dp training.engine=ddp", r"engine=ddp: not together with .*strategy=dp; remove"),
        (f"{FIXED} distributed.strategy=ddp", r"reduction=fixed: not possible with distributed\.strategy=ddp; remove"),
        (f"{FIXED} training.engine=ddp", r"reduction=fixed: not possible with training\.engine=ddp; remove"),
        (f"{FIXED} training.engine=cuda_graph", r"reduction=fixed: not possible with training\.engine=cuda_graph"),
        (f"{FIXED} distributed.fp16_allreduce=true", r"reduction=fixed: not possible with .*fp16_allreduce=true"),
        (
            "semantics=reference training.use_amp=true",
            r"use_amp=true: semantics reference has no such option; give false",
        ),
        ("semantics=reference training.gradient_clip_norm=1", r"clip_norm=1.*: semantics reference has no such option"),
        ("model.name=icenet model.dropout=0.5", r"model\.dropout=0\.5: icenet has no such option"),
    ],
)
def test_the_configuration_refuses_in_one_line(settings, message):
    with pytest.raises(ConfigError) as raised:
        load_run_config(None, settings.split())
    assert re.search(message, str(raised.value)), str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            "training.global_batch_size=5000",
            r"global batch size 5000: there are only 116 training samples; give at most",
        ),
        ("training.gradient_accumulation_steps=3", r"steps=3: does not divide the 8 rows .*; give a divisor of 8"),
        ("training.engine=cuda_graph", r"training\.engine=cuda_graph: needs a GPU, .*; use training\.engine=auto"),
        (
            "training.engine=compiled model.name=networks_of_users:Residual",
            r"compiled: the network is neither a plain chain .*auto",
        ),
        (
            "model.name=networks_of_users:DifferentOnEachRank",
            r"parameters differ between ranks \(rank 1 from rank 0\); draw",
        ),
        (
            "model.name=networks_of_users:OneNumberASample",
            r"for inputs of shape \(8, 4\) it returns \(8,\); return .*\(8, 2\)",
        ),
        ("model.name=networks_of_users:OneOutputTooMany", r"it returns \(8, 3\); return shape \(8, 2\)"),
        (
            "model.name=networks_of_users:Nothing",
            r"model\.name=networks_of_users:Nothing: networks_of_users has no 'Nothing'",
        ),
        ("model.input_size=5", r"model\.input_size=5: the data has 4 input features; remove the key or give 4"),
        ("model.output_size=1", r"model\.output_size=1: the data has 2 targets; remove the key or give 2"),
        ("model.name=unet", r"cannot take inputs of shape \(8, 4\): .*; check model\.name and data\.samples"),
    ],
)
def test_what_the_data_or_the_machine_cannot_do_is_refused_on_all_ranks(settings, message):
    def body(communicator):
        try:
            Run(communicator, settings.split())
        except MpitrainError as error:
            return type(error), str(error)
        return None

    one, other = in_turns(2, body)
    assert one == other, "the ranks do not agree"
    kind, text = one
    assert kind is ConfigError
    assert re.search(message, text), text
    assert "\n" not in text


def test_a_network_of_points_refuses_fields():
    with pytest.raises(
        ConfigError, match=r"cannot take inputs of shape \(1, 2, 6, 8\): .*; check model\.name and data"
    ):
        run_alone("model.name=mlp", "training.global_batch_size=16", samples=fields())
    run_alone("model.name=unet", "model.hidden_size=2", "training.global_batch_size=16", samples=fields())


@pytest.mark.parametrize("strategy", ["single", "dp"])
def test_strategies_of_one_process_train_on_one_rank_and_refuse_more(strategy):
    setting = f"distributed.strategy={strategy}"
    run, plain = run_alone(setting).fit(), run_alone("training.engine=eager").fit()
    assert run.trainer.state.epoch == 2
    assert run.trainer.state.train_loss == pytest.approx(plain.trainer.state.train_loss, rel=1e-3)
    with pytest.raises(
        LaunchError, match=f"^distributed.strategy={strategy}: needs one process, this run has 2 ranks; "
    ):
        in_turns(2, lambda communicator: Run(communicator, [setting]))


def test_as_many_samples_as_the_batch_are_enough():
    assert run_alone("training.global_batch_size=116", samples=points()).engine.steps_per_epoch == 1
