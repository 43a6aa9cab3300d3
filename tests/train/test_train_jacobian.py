"""The Jacobian as a metric: its value, its bits on any number of ranks and in resumed runs, and its end of a run."""

import itertools
import json

import netCDF4
import numpy as np
import pytest
import torch
from conftest import TESTS, launch, train
from networks import build_icenet, network_settings
from played_ranks import on_played_ranks, played_ranks_of
from torch import nn

from mpitrain.comm.virtual_ranks import VirtualRanks
from mpitrain.config import TargetTransform, TrainingSection, load_run_config
from mpitrain.data.dataset.batches import Microbatch
from mpitrain.errors import ConfigError, LaunchError, TrainingError
from mpitrain.models.build import build_model
from mpitrain.models.jacobian import input_jacobian
from mpitrain.models.output_transforms import find_inverse, output_transformed_targets
from mpitrain.train.callbacks import Callback, JacobianCallback
from mpitrain.train.engines.contract import StepResult
from mpitrain.train.engines.weights_digest import CrcOfWeights
from mpitrain.train.jacobian import MOST_SAMPLES, JacobianWatch, build_jacobian_watch
from mpitrain.train.state import TrainingState, relative_change
from mpitrain.train.stop_request import StopRequest
from mpitrain.train.trainer import Trainer

V = 8


class Given:
    """An `EvaluationSource` of given inputs, in two blocks."""

    def __init__(self, inputs):
        self.inputs = inputs

    def blocks(self):
        for part in (self.inputs[:3], self.inputs[3:]):
            if len(part):
                yield Microbatch(0, part, part[:, :1], part[:, :1])


def icenet():
    model = build_icenet(5, 4, "none", seed=1)
    model.set_normalization(torch.arange(5.0), torch.tensor([1.0, 2.0, 0.5, 4.0, 3.0]))
    return model


def mean_on(num_ranks, samples, model=None, num_virtual_ranks=V):
    """The mean Jacobian on played ranks; virtual rank v has samples v, v + V, ..."""
    model = model or icenet()  # once: threads share torch's random state

    def body(communicator):
        layout = VirtualRanks(num_virtual_ranks or num_ranks, num_ranks, communicator.rank)
        sources = [Given(samples[v :: layout.num_virtual_ranks]) for v in layout.owned]
        return JacobianWatch(model, sources, played_ranks_of(communicator), layout).mean()

    means = on_played_ranks(num_ranks, body)
    assert means.count(means[0]) == num_ranks
    return means[0]


def closed_form(model, samples):
    """y (1 - y) (W2 W1) / std, the mean over the samples."""
    with torch.no_grad():
        outputs = model(samples).double()
        slope = (model.fc2.weight @ model.fc1.weight / model.input_std).double()
        return ((outputs * (1 - outputs)).mean() * slope[0]).tolist()


def test_the_mean_is_the_closed_form_on_any_number_of_ranks():
    samples = torch.randn(103, 5, generator=torch.Generator().manual_seed(0))
    mean = mean_on(1, samples)
    assert mean == pytest.approx(closed_form(icenet(), samples), rel=1e-5)
    assert [mean_on(num_ranks, samples) for num_ranks in (2, 3, 4, 8)] == [mean] * 4
    assert mean_on(3, samples, num_virtual_ranks=None) == pytest.approx(mean, rel=1e-6)  # reference: 3 parts


def test_the_mean_is_that_of_physical_outputs_whatever_is_learnt_in_their_place():
    model = build_model(network_settings(name="mlp", hidden_size=4), 5, 1, 1, transforms=[TargetTransform("log", 1.0)])
    samples = torch.randn(103, 5, generator=torch.Generator().manual_seed(0))
    output_transformed_targets(model)
    mean = mean_on(1, samples, model)  # threads share the model
    learnt, slopes = (part.detach().double() for part in input_jacobian(model, samples))  # of the logarithm
    assert mean == pytest.approx((learnt.exp() * slopes[:, 0]).mean(dim=0).tolist(), rel=1e-5)
    assert not find_inverse(model).is_applied


def test_virtual_ranks_without_samples_count_for_nothing():
    samples = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    assert mean_on(2, samples) == pytest.approx(closed_form(icenet(), samples), rel=1e-5)


def test_no_more_than_the_first_samples_are_taken():
    samples = torch.randn(MOST_SAMPLES + 800, 5, generator=torch.Generator().manual_seed(0))
    assert mean_on(2, samples) == pytest.approx(closed_form(icenet(), samples[:MOST_SAMPLES]), rel=1e-5)


def test_a_jacobian_that_is_not_finite_ends_the_training():
    model = icenet()
    with torch.no_grad():
        model.fc1.weight[0, 0] = float("nan")
    with pytest.raises(TrainingError, match="the mean Jacobian is not finite; lower"):
        mean_on(1, torch.ones(9, 5), model)


def test_fields_are_refused():
    fields = Microbatch(0, torch.zeros(2, 3, 4, 4), torch.zeros(2, 1, 4, 4), torch.zeros(2, 1, 4, 4))
    source = type("Fields", (), {"blocks": lambda self: iter([fields])})()

    def body(communicator):
        return build_jacobian_watch(nn.Conv2d(3, 1, 1), [source], played_ranks_of(communicator), VirtualRanks(1, 1, 0))

    with pytest.raises(ConfigError, match="track_jacobian=true: not available for fields"):
        on_played_ranks(1, body)


def test_changes_are_relative_to_the_newer_one():
    state = TrainingState()
    state.record_jacobian([3.0, 4.0], 1, None)
    assert (state.jacobian, state.jacobian_change) == ([3.0, 4.0], None)
    state.record_jacobian([3.0, 9.0], 1, None)
    assert state.jacobian_change == 5 / np.sqrt(90)
    assert (relative_change([0.0], [0.0]), relative_change([0.0], [2.0])) == (0.0, 1.0)
    assert TrainingState.from_manifest(json.loads(json.dumps(state.to_manifest()))) == state


class Scripted(Callback):
    """Engine and Jacobian of a training whose Jacobians the test writes."""

    steps_per_epoch, global_batch_size = 1, 64
    has_drifted, shares_running_statistics, average = False, True, None

    def __init__(self, jacobians):
        self.jacobians, self.weights_digest = iter(jacobians), CrcOfWeights([])

    def mean(self):
        return [next(self.jacobians)]

    def take_steps(self, first_step, num_steps, learning_rate, stop_requested):
        return StepResult([0.5], False)

    epoch_loss = lambda self: 0.5  # noqa: E731
    validation_loss = lambda self: None  # noqa: E731
    gather_state = lambda self: {}  # noqa: E731

    def start_epoch(self, epoch, first_step=0): ...


STILL = [8.0, 4.0, 2.0, 2.0, 2.0, 4.0, *itertools.repeat(4.0, 30)]  # changes from epoch 2: 1 1 0 0 .5 0 0 0 ...


@pytest.mark.parametrize(
    ("training", "last_epoch"),
    [
        ({}, 4),
        ({"early_stopping_patience": 2}, 5),
        ({"early_stopping_patience": 3}, 9),
        ({"min_epochs": 8}, 8),
        ({"min_epochs": 6}, 7),
        ({"jacobian_freq": 2}, 8),  # epochs 2, 4, 6, 8: 8 4 2 2
        ({"jacobian_tolerance": None, "track_jacobian": True}, 20),
    ],
)
def test_training_stops_when_the_jacobian_stands_still(training, last_epoch):
    section = TrainingSection(**{"epochs": 20, "jacobian_tolerance": 0.1, **training})

    def body(communicator):
        model, scripted = nn.Linear(1, 1), Scripted(STILL)
        for parameter in model.parameters():
            nn.init.ones_(parameter)  # the same on all ranks
        ranks, scripted.optimizer = played_ranks_of(communicator), torch.optim.Adam(model.parameters())
        callbacks = [JacobianCallback(scripted.mean, section)] if section.follows_jacobian else []
        trainer = Trainer(section, ranks, model, scripted, callbacks, StopRequest())
        trainer.fit()
        return trainer.state.epoch

    assert on_played_ranks(2, body) == [last_epoch] * 2


def test_reference_has_no_such_stop_but_may_watch():
    with pytest.raises((ConfigError, LaunchError), match=r"jacobian_tolerance=0\.1: semantics reference has no such"):
        load_run_config(None, ["semantics=reference", "training.jacobian_tolerance=0.1"])
    assert load_run_config(None, ["semantics=reference", "training.track_jacobian=true"]).notices == ()


def records_of(folder):
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key not in ("wall_time_s", "timing")} for record in records]


@pytest.mark.lab
def test_runs_on_other_ranks_and_resumed_ones_have_the_same_numbers(tmp_path, small_history):
    settings = (f"data.data_path={small_history}", "training.epochs=4", "training.track_jacobian=true",
                "training.jacobian_freq=2", "model.hidden_layers=2", "data.validation_split=0.2",
                "training.global_batch_size=128")  # fmt: skip
    done = train(1, tmp_path / "whole", *settings)
    assert done.returncode == 0, done.stderr
    assert "not used yet" not in done.stderr
    records = records_of(tmp_path / "whole")
    assert ["jacobian" in record for record in records] == [False, True, False, True]
    assert records[1]["jacobian_change"] is None
    assert records[3]["jacobian_change"] == relative_change(records[3]["jacobian"], records[1]["jacobian"])
    assert len(records[3]["jacobian"]) == 7
    assert records[3]["jacobian_change"] > 0.01
    assert "Change of the mean Jacobian" in (tmp_path / "whole" / "report.html").read_text()
    steps = records[0]["step"]
    stopped = train(2, tmp_path / "parts", *settings, f"training.max_steps={2 * steps + 1}")
    assert stopped.returncode == 5, stopped.stderr
    resumed = train(3, tmp_path / "parts", "--resume", "training.max_steps=null")
    assert resumed.returncode == 0, resumed.stderr
    assert records_of(tmp_path / "parts") == records


@pytest.mark.lab
def test_reference_records_it_too_and_writes_its_prediction(tmp_path, small_history):
    done = train(2, tmp_path / "run", "semantics=reference", f"data.data_path={small_history}", "training.epochs=3",
                 "training.track_jacobian=true", f"prediction.output_filename={tmp_path / 'p.nc'}")  # fmt: skip
    assert done.returncode == 0, done.stderr
    with netCDF4.Dataset(tmp_path / "p.nc") as dataset:
        assert len(dataset.dimensions["n"]) > 100
        assert "aice_ffnn" in dataset.variables
    assert [record["jacobian_change"] is None for record in records_of(tmp_path / "run")] == [True, False, False]


@pytest.mark.lab
def test_every_key_of_the_large_emulator_has_its_effect(tmp_path):
    """Its own file but for the data's path, the number of epochs, and a tolerance that its Jacobian meets at once."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(3000, 14)).astype("f4")
    np.savez(tmp_path / "d.npz", inputs=inputs, targets=np.tanh(inputs @ random.normal(size=14))[:, None])
    given = (str(TESTS / "data" / "older_configs" / "emulator_large.yaml"), f"data.data_path={tmp_path / 'd.npz'}")
    changed = ("training.epochs=9", "training.jacobian_tolerance=1e9", "training.min_epochs=4",
               "training.early_stopping_patience=2")  # fmt: skip
    done = launch(["-m", "mpitrain", "train", *given, *changed, "compute.device=cpu"], 2, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "not used yet" not in done.stderr
    records = records_of(tmp_path / "models_aice")
    assert [len(record["jacobian"]) for record in records] == [14] * 4  # stopped at min_epochs
    assert len({record["jacobian_change"] for record in records}) == 4


def test_a_jacobian_that_changes_leaves_early_stopping_s_verdict():
    section = TrainingSection(track_jacobian=True, jacobian_tolerance=0.01, early_stopping_patience=2)
    values = iter([[1.0], [2.0], [4.0]])
    callback, state = JacobianCallback(lambda: next(values), section), TrainingState()
    for _ in range(3):
        state.record_epoch(1.0, None)
        state.stopped_early = True
        callback.on_epoch(state, 0.1, 0.0)
        assert state.stopped_early
