"""What a resumed run must have in common with its checkpoint."""

import json
from pathlib import Path

import pytest
import torch
from networks import build_icenet
from played_ranks import on_played_ranks, played_ranks_of

from mpitrain.config import RunConfig, TrainingSection
from mpitrain.data.dataset.dataset import DataSummary
from mpitrain.errors import CheckpointError
from mpitrain.runs.layout import plan_layout
from mpitrain.train.checkpoint.compatibility import check_fits, check_same_data, checkpoint_settings, global_batch_size
from mpitrain.train.checkpoint.store import Checkpoint

# Of the data only the numbers of inputs and targets are settings.
OF_DATA = DataSummary(100, 10, 0, None, None, tuple("abcdefg"), ("y",))


def config_with(semantics="standard", **training):
    return RunConfig(semantics=semantics, training=TrainingSection(**training))


@pytest.mark.parametrize(
    ("training", "world_size", "expected"),
    [
        ({}, 1, 64), ({}, 6, 64),
        ({"global_batch_size": 100}, 6, 100), ({"global_batch_size": "full"}, 6, "full"),
        ({"batch_size": 10}, 1, 10), ({"batch_size": 10}, 6, 60), ({"batch_size": "full"}, 6, "full"),
    ],
)  # fmt: skip
def test_global_batch_size(training, world_size, expected):
    assert global_batch_size(config_with(**training).training, world_size) == expected


def test_reference_takes_all_samples_at_once():
    config = config_with("reference")

    def body(communicator):
        return plan_layout(config, played_ranks_of(communicator), None, "points").layout(9, 9).global_batch_size

    assert on_played_ranks(4, body) == ["full"] * 4


def settings_of(config=None, num_ranks=1, reduction="fixed", num_virtual_ranks=8, batch_size=64, engine="eager"):
    config = config or config_with()
    return on_played_ranks(
        num_ranks,
        lambda communicator: checkpoint_settings(
            config, played_ranks_of(communicator, reduction), OF_DATA, num_virtual_ranks, batch_size, engine
        ),
    )[0]


def checkpoint_with(settings, tensors=None):
    return Checkpoint(Path("run/checkpoints/step-00000010"), tensors or {}, {}, settings)


def test_the_same_settings_fit_on_any_number_of_ranks():
    assert check_fits(checkpoint_with(settings_of()), settings_of(num_ranks=3)) == []


@pytest.mark.parametrize(
    ("config", "key", "there", "here"),
    [
        (RunConfig(seed=1), "seed", 0, 1),
        (config_with(dtype="float64"), "training.dtype", "float32", "float64"),
        (config_with(shuffle=False), "training.shuffle", "true", "false"),
        (config_with("reference"), "semantics", "standard", "reference"),
        (config_with(optimizer="sgd"), "training.optimizer.type", "adam", "sgd"),
    ],
)
def test_what_decides_the_bits_must_not_differ(config, key, there, here):
    with pytest.raises(CheckpointError) as refused:
        check_fits(checkpoint_with(settings_of()), settings_of(config))
    assert str(refused.value) == (
        f"run/checkpoints/step-00000010: written with {key}={there}, this run has {here}; "
        f"resume with {key}={there}, or start a new run"
    )
    assert refused.value.exit_code == 2


def test_reference_keeps_its_number_of_ranks():
    reference = config_with("reference")
    with pytest.raises(CheckpointError, match="written with number of ranks=2, this run has 3"):
        check_fits(checkpoint_with(settings_of(reference, 2)), settings_of(reference, 3))


@pytest.mark.parametrize("changes", [{"num_virtual_ranks": 16}, {"batch_size": 256}])
def test_sizes_that_come_from_the_checkpoint_may_differ(changes):
    assert check_fits(checkpoint_with(settings_of(**changes)), settings_of()) == []


def test_threads_are_free_only_without_a_promise_of_bits():
    fixed = {**settings_of(), "training.threads_per_rank": 4}
    with pytest.raises(CheckpointError, match=r"written with training.threads_per_rank=4, this run has 1"):
        check_fits(checkpoint_with(fixed), settings_of())
    free = {**settings_of(reduction="any"), "training.threads_per_rank": 4}
    assert check_fits(checkpoint_with(free), settings_of(reduction="any")) == []


@pytest.mark.parametrize(
    ("schedule", "is_said"), [({"type": "cosine"}, True), ({"type": "step"}, False), (None, False)]
)
def test_a_schedule_that_more_epochs_stretch_is_said(schedule, is_said):
    short, longer = (config_with(scheduler=schedule, epochs=epochs) for epochs in (6, 8))
    before = json.loads(json.dumps(settings_of(short)))
    assert check_fits(checkpoint_with(before), settings_of(short)) == []
    expected = (
        "run/checkpoints/step-00000010: training.epochs changed from 6 to 8: the result will be neither "
        "that of the old settings nor that of the new ones"
    )
    assert check_fits(checkpoint_with(before), settings_of(longer)) == [expected] * is_said


def test_a_setting_changed_in_mid_run_is_said_and_allowed():
    changed = config_with(optimizer={"learning_rate": 0.01, "weight_decay": 0.5}, gradient_clip_norm=1.0)
    before = json.loads(json.dumps(settings_of()))
    (line,) = check_fits(checkpoint_with(before), settings_of(changed))
    assert line == (
        "run/checkpoints/step-00000010: training.optimizer.learning_rate changed from 0.001 to 0.01, "
        "training.optimizer.weight_decay changed from 0.0 to 0.5, training.gradient_clip_norm changed from null to "
        "1.0: the result will be neither that of the old settings nor that of the new ones"
    )
    assert check_fits(checkpoint_with(before), settings_of()) == []
    scheduled = config_with(scheduler="cosine")
    (line,) = check_fits(checkpoint_with(before), settings_of(scheduled))
    assert "training.scheduler.type changed from none to cosine: " in line
    del before["may change"]  # as earlier versions wrote it
    assert check_fits(checkpoint_with(before), settings_of(changed)) == []


def test_another_torch_is_said_and_allowed():
    (line,) = check_fits(checkpoint_with({**settings_of(), "torch version": "1.0"}), settings_of())
    assert "written by torch 1.0, this run uses " in line
    assert "last bits" in line


def test_an_older_arithmetic_is_said_in_standard_semantics_only():
    older = {key: value for key, value in settings_of().items() if key != "numerics"}
    (line,) = check_fits(checkpoint_with(older), settings_of())
    assert "written with version 1 of this package's arithmetic, this run uses version 2: " in line
    reference = RunConfig(semantics="reference")
    older = {key: value for key, value in settings_of(reference, 2).items() if key != "numerics"}
    assert check_fits(checkpoint_with(older), settings_of(reference, 2)) == []


def test_other_data_are_refused():
    model = build_icenet(3, 2, "none", seed=0)
    tensors = {f"model.{name}": value.clone() for name, value in model.state_dict().items()}
    check_same_data(["same.nc"], checkpoint_with({}, tensors), model)
    tensors["model.input_std"][1] = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))
    with pytest.raises(CheckpointError, match=r"other data than same.nc \('input_std' differs\)"):
        check_same_data(["same.nc"], checkpoint_with({}, tensors), model)
    with pytest.raises(CheckpointError, match="'input_mean' differs"):
        check_same_data(["same.nc"], checkpoint_with({}, {}), model)
