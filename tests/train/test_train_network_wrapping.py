"""What the settings wrap around the network, and which engine they lead to."""

import pytest
import torch
from played_runs import chosen_alone, fitted_hashes, one_step, run_alone
from torch._dynamo.utils import counters

from mpitrain.config import load_run_config
from mpitrain.data.dataset.batches import Microbatch
from mpitrain.errors import ConfigError
from mpitrain.models.build import build_model
from mpitrain.train.choose_engine import slow_step_notices
from mpitrain.train.engine_choice import EngineChoice
from mpitrain.train.needs import EngineRequest

DEEP = ("model.name=mlp", "model.hidden_layers=4", "training.engine=eager")
NORMED = "model.name=mlp model.batch_norm=true"
CHECKPOINTED = "training.gradient_checkpointing=true"


def kept_in_a_step(*settings):
    """How many tensors autograd keeps between the passes of one slice, on average."""
    run, kept = run_alone(*DEEP, *settings), []
    run.engine.start_epoch(0)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(1) or tensor, lambda tensor: tensor):
        one_step(run.engine, 0, 0.05)
    return len(kept) / len(run.engine.inputs.batches)


def test_gradient_checkpointing_keeps_less_and_changes_no_bit():
    # Five blocks are left with their input each; what is kept without is weights and activations of each layer.
    assert kept_in_a_step(CHECKPOINTED) <= kept_in_a_step() - 5
    (plain,) = fitted_hashes(1, *DEEP)
    for num_ranks in (1, 3):
        assert fitted_hashes(num_ranks, *DEEP, CHECKPOINTED) == [plain] * num_ranks


@pytest.mark.lab
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler warns of torch's own parts
def test_torch_compile_compiles_and_agrees(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of processes for one small kernel
    torch._dynamo.reset()
    counters.clear()
    small = ("model.name=mlp", "model.hidden_size=5", "model.hidden_activation=tanh", "training.engine=eager")
    plain = run_alone(*small)
    plain.steps(2)
    assert counters["stats"]["unique_graphs"] == 0
    compiled = run_alone(*small, "training.torch_compile=true")
    compiled.steps(2)
    assert counters["stats"]["unique_graphs"] > 0
    assert counters["aot_autograd"]["ok"] > 0
    assert any(tmp_path.rglob("*.so")), "no kernel was built"
    torch.testing.assert_close(compiled.weights(), plain.weights(), rtol=1e-5, atol=1e-6)
    # Validation and export see the network itself.
    assert list(compiled.model.state_dict()) == list(plain.model.state_dict())
    torch._dynamo.reset()


def asked(settings, resumed=None):
    config = load_run_config(None, settings).config
    model = build_model(config.model, 4, 1, seed=0)
    shape = (3, 4, 6, 8) if config.network.samples == "fields" else (3, 4)
    example = Microbatch(0, torch.randn(shape), torch.randn(3, 1, *shape[2:]), torch.ones(3, 1, *shape[2:]))
    request = EngineRequest(
        config.semantics, config.training, config.distributed, config.compute.instruction_set, resumed
    )
    return request, model, example


def choose(*settings, resumed=None):
    request, model, example = asked(settings, resumed)
    return chosen_alone(request, model, example)


@pytest.mark.parametrize(
    ("settings", "engine", "reason"),
    [
        ("", "compiled", "a chain of dense layers on CPUs"),
        ("model.name=mlp model.hidden_layers=3", "compiled", "a chain of dense layers on CPUs"),
        ("training.engine=compiled", "compiled", "a chain of dense layers on CPUs"),
        ("training.engine=eager", "eager", "training.engine=eager"),
        ("training.use_amp=true", "eager", "training.use_amp=true needs autograd"),
        ("training.torch_compile=true", "eager", "training.torch_compile=true needs autograd"),
        (CHECKPOINTED, "eager", "training.gradient_checkpointing=true needs autograd"),
        ("distributed.strategy=dp", "eager", "distributed.strategy=dp needs autograd"),
        ("distributed.strategy=ddp", "ddp", "distributed.strategy=ddp"),
        ("training.engine=ddp", "ddp", "training.engine=ddp"),
        ("training.engine=traced", "traced", "training.engine=traced"),
        ("model.name=mlp model.dropout=0.1", "compiled", "a chain of dense layers on CPUs"),
        ("model.name=mlp model.batch_norm=true", "compiled", "a chain of dense layers on CPUs"),
        ("model.name=unet", "compiled", "convolutions on CPUs"),
        ("model.name=cnn model.hidden_size=200", "traced", "a layer has more than 128 channels, where PyTorch is fast"),
        ("model.hidden_size=1000", "compiled", "a chain of dense layers on CPUs"),
        ("model.name=unet model.batch_norm=true", "eager", "batch norm needs sums over all microbatches"),
        (f"{NORMED} distributed.sync_batch_norm=true", "eager", "batch norm needs sums over all microbatches"),
        (
            f"{NORMED} training.gradient_accumulation_steps=2",
            "eager",
            "training.gradient_accumulation_steps needs autograd",
        ),
        ("model.name=unet training.gradient_accumulation_steps=2", "compiled", "convolutions on CPUs"),
    ],
)
def test_the_engine_and_why(settings, engine, reason):
    choice = choose(*settings.split())
    assert (choice.name, choice.reason, choice.is_fallback) == (engine, reason, False)


@pytest.mark.parametrize("resumed", ["eager", "ddp", "traced"])
def test_a_resumed_run_keeps_its_engine(resumed):
    assert choose(resumed=resumed).name == resumed
    assert choose("model.name=unet", resumed=resumed).name == resumed
    assert choose("training.engine=compiled", resumed=resumed).name == "compiled"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            "training.engine=compiled model.name=unet model.hidden_size=65",
            "a layer has more than 128 channels.*; use .*=auto",
        ),
        ("training.engine=compiled training.use_amp=true", "training.use_amp=true needs autograd; use .*=auto"),
        ("training.engine=traced training.use_amp=true", "training.use_amp=true needs autograd; use .*=auto"),
        ("training.engine=traced model.name=mlp model.batch_norm=true", "batch norm needs sums over .*; use .*=auto"),
        (
            f"training.engine=compiled {NORMED} distributed.sync_batch_norm=true",
            "distributed.sync_.* autograd; use .*",
        ),
        ("training.engine=cuda_graph", "needs a GPU, this run is on CPUs; use training.engine=auto"),
    ],
)
def test_an_engine_that_cannot_serve_is_refused_in_one_line(settings, message):
    with pytest.raises(ConfigError, match=rf"^training\.engine=\w+: {message}$"):
        choose(*settings.split())


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ("training.use_amp=true", "training.use_amp=true needs autograd"),
        ("training.torch_compile=true", "training.torch_compile=true needs autograd"),
        (CHECKPOINTED, "training.gradient_checkpointing=true needs autograd"),
        ("distributed.strategy=dp", "distributed.strategy=dp needs autograd"),
        ("training.use_amp=true model.name=mlp model.hidden_size=256", "training.use_amp=true needs autograd"),
        ("training.use_amp=true model.name=mlp model.hidden_size=257", None),
        ("training.use_amp=true model.name=unet", None),
        ("training.engine=eager", None),
        ("training.optimizer.type=torch.optim:RMSprop", None),
        ("", None),
    ],
)
def test_a_switch_that_makes_small_steps_many_times_slower_says_how_much(settings, cause):
    request, model, _ = asked(settings.split())
    line = "on CPUs a step of a network this small takes up to 400 times as long as without it; remove this setting"
    found = slow_step_notices(request, choose(*settings.split()), model, torch.device("cpu"))
    assert found == ([] if cause is None else [f"{cause}: {line}"])


@pytest.mark.parametrize(("width", "is_said"), [(64, True), (65, False)])
def test_a_gpu_that_is_slower_than_a_cpu_says_so(width, is_said):
    settings = ["model.name=mlp", f"model.hidden_size={width}"]
    request, model, _ = asked(settings)
    found = slow_step_notices(request, EngineChoice("eager", ""), model, torch.device("cuda"))
    assert ["give compute.device=cpu" in line for line in found] == [True] * is_said
