"""The compiled engine: the eager engine's numbers to rounding, and one result for any number of (played) ranks."""

import ctypes
import shutil
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import TIMEOUT_S, launch
from networks import build_icenet
from played_ranks import on_played_ranks, played_ranks_of
from played_runs import Run, chosen_alone, in_turns, one_step, points, run_alone
from tensors_of_data import as_tensors

from mpitrain.comm.virtual_ranks import VirtualRanks
from mpitrain.config import load_run_config
from mpitrain.data.dataset.batches import Microbatch, plan_batches
from mpitrain.data.dataset.exchange import take_share
from mpitrain.data.dataset.in_memory import distribute
from mpitrain.data.dataset.split_rule import split_rule
from mpitrain.data.samples import Samples
from mpitrain.errors import MissingDependencyError, MpitrainError
from mpitrain.train.choose_engine import dense_network_of
from mpitrain.train.compiled import build
from mpitrain.train.compiled.build import DenseNetwork, build_kernel, load_kernel
from mpitrain.train.compiled.engine import CompiledEngine
from mpitrain.train.compiled.structs import KernelStep
from mpitrain.train.engines.eager import EagerEngine
from mpitrain.train.engines.standard import EngineInputs
from mpitrain.train.needs import EngineRequest
from mpitrain.train.optimizers.state import optimizer_tensors, restore_optimizer

V = 8
_ONE_AT_A_TIME = threading.Lock()  # torch's random state is the process's, not the thread's


def make_samples(num_samples=331):
    generator = np.random.default_rng(5)
    inputs = generator.normal(size=(num_samples, 7)).astype(np.float32)
    targets = 1 / (1 + np.exp(-inputs @ np.linspace(-1, 1, 7))) + generator.normal(scale=0.05, size=num_samples)
    return Samples(inputs, targets.astype(np.float32)[:, None], np.arange(num_samples), tuple("abcdefg"))


class Trained:
    """One rank's model after `num_epochs` epochs of an engine."""

    def __init__(self, communicator, engine_class, settings, num_epochs=2, reduction="fixed"):
        config = load_run_config(None, ["training.global_batch_size=48", "model.hidden_size=19", *settings]).config
        dtype = {"float32": torch.float32, "float64": torch.float64}[config.training.dtype]
        ranks = played_ranks_of(communicator, reduction)
        layout = VirtualRanks(V, communicator.size, communicator.rank)
        data = distribute(
            take_share(make_samples(), ranks), ranks, layout, split_rule(config.split_data), config.training.dtype
        )
        data = data if engine_class is CompiledEngine else as_tensors(data)
        with _ONE_AT_A_TIME:
            self.model = build_icenet(7, 19, config.model.hidden_activation or "none", config.seed, dtype)
            kernel = (
                load_kernel(dense_network_of(config.training, self.model)) if engine_class is CompiledEngine else None
            )
        with torch.no_grad():
            known = data.summary.normalization
            self.model.set_normalization(torch.as_tensor(known.mean), torch.as_tensor(known.std))
        plan = plan_batches(data.summary.num_training_samples, 48, V)
        more = (dense_network_of(config.training, self.model), kernel) if kernel else ()
        sources = (data.microbatches(plan, config.seed, True), data.evaluation())
        parts = EngineInputs(
            self.model, *sources, plan, layout, ranks, config.training, config.distributed, config.seed
        )
        self.engine = engine_class(parts, *more)
        self.losses = [self.run_epoch(epoch) for epoch in range(num_epochs)]

    def run_epoch(self, epoch):
        self.engine.start_epoch(epoch)
        losses = [one_step(self.engine, step, 0.01).loss for step in range(self.engine.steps_per_epoch)]
        return losses, self.engine.epoch_loss(), self.engine.validation_loss()

    def weights(self):
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.model.parameters()])


def alone(engine_class, *settings, **options):
    return on_played_ranks(1, lambda communicator: Trained(communicator, engine_class, settings, **options))[0]


SETTINGS = [
    ("training.optimizer.type=adam",),
    ("training.optimizer.type=adam", "training.optimizer.weight_decay=0.1", "model.hidden_activation=relu"),
    ("training.optimizer.type=adamw", "training.optimizer.weight_decay=0.1", "model.hidden_activation=sigmoid"),
    ("training.optimizer.type=sgd", "training.optimizer.momentum=0.9", "training.optimizer.weight_decay=0.01"),
    ("training.loss_function=mae", "model.hidden_activation=gelu"),
    ("training.loss_function=huber", "training.gradient_clip_norm=0.01"),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: " ".join(settings).replace("training.", ""))
def test_the_compiled_step_is_the_eager_step_to_rounding(settings):
    # In float64 rounding cannot hide a wrong formula, and no kink of mae or relu is crossed by it.
    eager, compiled = (alone(kind, *settings, "training.dtype=float64") for kind in (EagerEngine, CompiledEngine))
    torch.testing.assert_close(compiled.weights(), eager.weights(), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(np.hstack(compiled.losses[1][0]), np.hstack(eager.losses[1][0]), rtol=1e-9)
    assert compiled.losses[1][1:] == pytest.approx(eager.losses[1][1:], rel=1e-9)


def test_in_float32_the_difference_is_float32_rounding():
    eager, compiled = (alone(kind) for kind in (EagerEngine, CompiledEngine))
    torch.testing.assert_close(compiled.weights(), eager.weights(), rtol=1e-4, atol=1e-5)
    assert not torch.equal(compiled.weights(), alone(EagerEngine, "training.optimizer.weight_decay=0.01").weights())


@pytest.mark.parametrize("settings", [SETTINGS[0], SETTINGS[5]], ids=["adam", "huber, clipped"])
def test_any_number_of_ranks_gives_the_same_bits(settings):
    one = alone(CompiledEngine, *settings)
    for num_ranks in (2, 3, 4, 5, 8):
        ranks = on_played_ranks(num_ranks, lambda communicator: Trained(communicator, CompiledEngine, settings))
        for rank in ranks:
            assert torch.equal(rank.weights(), one.weights())
            assert rank.losses == one.losses


def test_the_library_reduction_agrees_to_rounding_only():
    one = alone(CompiledEngine, reduction="any")
    for rank in on_played_ranks(3, lambda communicator: Trained(communicator, CompiledEngine, (), reduction="any")):
        torch.testing.assert_close(rank.weights(), one.weights(), rtol=1e-4, atol=1e-5)


def test_restored_state_continues_with_the_same_bits():
    whole, first, second = (alone(CompiledEngine, num_epochs=count) for count in (2, 1, 0))
    names = [name for name, _ in first.model.named_parameters()]
    with torch.no_grad():
        for own, saved in zip(second.model.parameters(), first.model.parameters(), strict=True):
            own.copy_(saved)
    restore_optimizer(second.engine.optimizer, names, optimizer_tensors(first.engine.optimizer, names))
    second.run_epoch(1)
    assert torch.equal(second.weights(), whole.weights())


def test_a_stop_on_one_rank_is_heard_by_all():
    def body(communicator):
        trained = Trained(communicator, CompiledEngine, (), num_epochs=0)
        trained.engine.start_epoch(0)
        return [
            one_step(trained.engine, step, 0.01, step == 1 and communicator.rank == 2).stop_requested for step in (0, 1)
        ]

    assert on_played_ranks(4, body) == [[False, True]] * 4


def test_without_a_compiler_auto_gives_way_with_one_line_and_compiled_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("MPITRAIN_CACHE", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)

    def choose(engine, resumed=None):
        config = load_run_config(None, [f"training.engine={engine}"]).config
        request = EngineRequest(config.semantics, config.training, config.distributed, resumed_engine=resumed)
        model = build_icenet(7, 16, "none", 0)
        example = Microbatch(0, torch.zeros(2, 7), torch.zeros(2, 1), torch.ones(2, 1))
        return chosen_alone(request, model, example)

    assert choose("auto").name == "traced"
    assert choose("auto").is_fallback
    assert "apt-get install g++" in choose("auto").reason
    assert not choose("eager").is_fallback
    for asked in (("compiled", None), ("auto", "compiled")):
        with pytest.raises(MissingDependencyError, match="no C\\+\\+ compiler"):
            choose(*asked)


# Errors on both sides of Huber's 1, whose losses and means binary fractions hold: what is computed is exact.
ERRORS = np.array([0.25, -0.5, 1, -1, 1.5, -2, 3, -8])
LOSSES = {
    "mse": [0.0625, 0.25, 1, 1, 2.25, 4, 9, 64],
    "mae": [0.25, 0.5, 1, 1, 1.5, 2, 3, 8],
    "huber": [0.03125, 0.125, 0.5, 0.5, 1, 1.5, 2.5, 7.5],
}
HUBER_SLOPES = [0.25, -0.5, 1, -1, 1, -1, 1, -1]


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_its_formula(name: str) -> None:
    loss = load_run_config(None, [f"training.loss_function={name}"]).config.training.loss_function
    errors, zeros = ERRORS.astype(np.float32), np.zeros(len(ERRORS), np.float32)
    assert loss.of_arrays(errors, zeros).tolist() == loss.of_arrays(zeros, errors).tolist() == LOSSES[name]
    assert loss.build()(torch.from_numpy(errors), torch.from_numpy(zeros)).tolist() == LOSSES[name]


@pytest.mark.parametrize("engine", [CompiledEngine, EagerEngine])
def test_huber_s_loss_and_its_slope_are_those_of_the_formula_on_both_sides_of_one(
    monkeypatch: pytest.MonkeyPatch, engine: type[CompiledEngine | EagerEngine]
) -> None:
    """A network of zeros answers the sigmoid of 0; a step of plain descent moves its last bias by the mean slope."""
    samples = replace(make_samples(len(ERRORS)), targets=(0.5 - ERRORS).astype(np.float32)[:, None])
    monkeypatch.setattr(sys.modules[__name__], "make_samples", lambda: samples)
    settings = ("training.optimizer.type=sgd", "training.loss_function=huber", "data.validation_split=0")
    trained = alone(engine, *settings, "training.dtype=float64", num_epochs=0)
    with torch.no_grad():
        for parameter in trained.model.parameters():
            parameter.zero_()
    trained.engine.start_epoch(0)
    assert one_step(trained.engine, 0, 1.0).loss == np.mean(LOSSES["huber"])
    assert trained.engine.epoch_loss() == np.mean(LOSSES["huber"])
    *others, last = trained.weights().tolist()
    assert not any(others)
    assert last == -np.mean(HUBER_SLOPES) / 4, "the sigmoid's slope at 0 is a quarter"


# ------------------------------------------------------------------------------ chains of any depth, several targets

CHAINS = [
    ("model.name=mlp", "model.hidden_layers=1", "model.hidden_size=5"),
    ("model.name=mlp", "model.hidden_layers=3", "model.hidden_size=17", "model.hidden_activation=tanh"),
    ("model.name=mlp", "model.hidden_layers=2", "model.hidden_activation=gelu", "model.output_activation=sigmoid"),
    ("model.name=icenet", "model.hidden_activation=tanh", "training.loss_function=huber"),
]


def trained(engine, num_ranks, *settings):
    chosen = (f"training.engine={engine}", *settings)
    return in_turns(num_ranks, lambda communicator: Run(communicator, chosen).fit())


@pytest.mark.parametrize("num_targets", [1, 3])
@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: " ".join(chain).replace("model.", ""))
def test_any_chain_of_layers_is_the_eager_one_to_rounding(chain, num_targets):
    def weights(engine):
        settings = (f"training.engine={engine}", "training.dtype=float64", *chain)
        samples = points(num_targets=num_targets)
        return in_turns(1, lambda communicator: Run(communicator, settings, samples).fit().weights())[0]

    eager, compiled = weights("eager"), weights("compiled")
    torch.testing.assert_close(compiled, eager, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("chain", CHAINS[1:3], ids=["deep", "gelu"])
def test_a_chains_bits_are_the_same_for_any_number_of_ranks(chain):
    (one,) = trained("compiled", 1, *chain)
    for num_ranks in (2, 3, 4, 8):
        assert {run.sha256() for run in trained("compiled", num_ranks, *chain)} == {one.sha256()}


def test_joined_slices_agree_with_the_fixed_order_to_rounding():
    (fixed,) = trained("compiled", 1, *CHAINS[1])
    for num_ranks in (1, 2, 3):
        for run in trained("compiled", num_ranks, *CHAINS[1], "training.reduction=any"):
            torch.testing.assert_close(run.weights(), fixed.weights(), rtol=1e-3, atol=1e-5)
            assert run.trainer.state.train_loss == pytest.approx(fixed.trainer.state.train_loss, rel=1e-4)


def test_joined_slices_name_all_their_virtual_ranks_when_they_fail():
    def body(communicator):
        run = Run(communicator, ("training.engine=compiled", "training.reduction=any", *CHAINS[0]))
        if communicator.rank == 1:
            run.parts.dataset.training[0].padded_inputs[...] = float("nan")
        run.steps(1)
        return run.engine.describe_failure()

    assert in_turns(2, body) == ["rank 1 on here, virtual ranks [2, 3]"] * 2


def test_a_run_loads_nothing_of_torch_s_compiler(tmp_path, small_history):
    """It would cost each rank a second or two before the first step."""
    program = (
        "import gc, sys; from mpitrain.cli.main import main; code = main(sys.argv[1:]); "
        "code = code or (None if gc.isenabled() and gc.get_freeze_count() else 'no collector'); "
        "loaded = [name for name in ('torch._dynamo', 'torch._inductor', 'sympy') if name in sys.modules]; "
        "sys.exit(repr(loaded) if loaded else code)"
    )
    settings = (f"output.model_dir={tmp_path / 'run'}", f"data.data_path={small_history}", "training.epochs=2")
    done = launch(["-c", program, "train", *settings, "training.engine=compiled"])
    assert done.returncode == 0, done.stderr


def test_who_watches_sees_the_steps_of_a_call():
    run = run_alone("training.engine=compiled", *CHAINS[0])
    notes = run.ranks.cpu.notes
    for first in (0, 2):
        run.engine.take_steps(first, 2, 0.01, False)
        assert (notes.step, notes.collective) == (first + 2, None)
        run.ranks.note_step(first + 2)
        assert notes.step == first + 2


def test_a_kernel_of_other_structures_is_refused_before_it_touches_memory(monkeypatch, tmp_path):
    monkeypatch.setenv("MPITRAIN_CACHE", str(tmp_path))
    sources = tmp_path / "kernels"
    shutil.copytree(build._KERNELS, sources)
    step = sources / "dense_step.hpp"
    step.write_text(step.read_text().replace("    double clip_norm, beta1,", "    double forgotten, clip_norm, beta1,"))
    monkeypatch.setattr(build, "_KERNELS", sources)
    network = DenseNetwork((3, 4, 1), "tanh", "sigmoid", "mse", "float32")
    size = ctypes.sizeof(KernelStep)
    with pytest.raises(MpitrainError, match=rf"\.so: Step has {size + 8} bytes there and {size} in structs\.py, .*\Z"):
        load_kernel(network)


def test_each_kernel_source_compiles_by_itself():
    """As an editor reads it: it includes what it needs, and the network's sizes have examples."""
    for path in build._KERNELS.glob("*.[ch]pp"):
        command = [build.cpp_compiler(), "-std=c++17", "-Wall", "-fsyntax-only", "-x", "c++", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stderr


def test_a_change_of_an_included_source_is_another_kernel(monkeypatch, tmp_path):
    monkeypatch.setenv("MPITRAIN_CACHE", str(tmp_path))
    network = DenseNetwork((3, 4, 1), "tanh", "sigmoid", "mse", "float32")
    sources = tmp_path / "kernels"
    shutil.copytree(build._KERNELS, sources)
    before = build_kernel(network)
    monkeypatch.setattr(build, "_KERNELS", sources)
    assert build_kernel(network) == before
    changed = sources / "shared_sum.hpp"
    changed.write_text(changed.read_text() + "// changed\n")
    assert build_kernel(network) != before
