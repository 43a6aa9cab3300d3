"""TorchScript files: what is read back is what was written, to the bit, and a file is whole or not there."""

import errno

import pytest
import torch
from conftest import launch
from networks import build_icenet, network_settings
from torch import nn

from mpitrain import durable_files
from mpitrain.errors import OutputError
from mpitrain.models.batch_norm import take_batch_sums, update_running_statistics
from mpitrain.models.build import build_model
from mpitrain.models.checkpointing import apply_gradient_checkpointing
from mpitrain.models.files.torchscript import (
    ModelDescription,
    check_saved,
    load_and_run_code,
    normalization_path,
    save_model,
    save_normalization,
    script_model,
)
from mpitrain.models.jacobian import input_jacobian
from mpitrain.models.normalized import NormalizedModel


@pytest.fixture
def model():
    model = build_icenet(7, 16, "none", seed=4)
    with torch.no_grad():
        model.set_normalization(torch.linspace(-1, 1, 7), torch.linspace(1, 2, 7))
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("activation", ["none", "sigmoid", "relu", "gelu"])
def test_a_model_comes_back_bit_for_bit(tmp_path, activation, dtype):
    model = build_icenet(7, 16, activation, seed=4, dtype=dtype)
    with torch.no_grad():
        model.set_normalization(torch.linspace(-1, 1, 7), torch.linspace(1, 2, 7))
    save_model(model, tmp_path / "model.pt")
    loaded = load_and_run_code(tmp_path / "model.pt")
    assert list(loaded.state_dict()) == list(model.state_dict())
    for name, value in loaded.state_dict().items():
        assert value.dtype == dtype
        assert torch.equal(value, model.state_dict()[name]), name
    inputs = torch.randn(50, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    with torch.no_grad():
        assert torch.equal(loaded(inputs), model(inputs))


def test_saving_leaves_the_model_as_it_was(model, tmp_path):
    model.train()
    save_model(model, tmp_path / "model.pt")
    assert model.training
    assert not load_and_run_code(tmp_path / "model.pt").training
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_the_normalization_file_holds_two_numbered_tensors(model, tmp_path):
    path = save_normalization(model.input_mean, model.input_std, tmp_path / "ice.pt")
    assert path == normalization_path(tmp_path / "ice.pt") == tmp_path / "normalization.ice.pt"
    tensors = dict(load_and_run_code(path).named_buffers())
    assert list(tensors) == ["0", "1"]
    assert torch.equal(tensors["0"], model.input_mean)
    assert torch.equal(tensors["1"], model.input_std)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_file_that_cannot_be_written_is_said(model, tmp_path):
    with pytest.raises(OutputError, match=r"model.pt: cannot be written .*check the folder's permissions"):
        save_model(model, tmp_path / "none" / "model.pt")


def test_a_failure_keeps_the_old_file_and_leaves_no_other(model, tmp_path, monkeypatch):
    path = tmp_path / "model.pt"
    save_model(model, path)
    before = path.read_bytes()

    def write_half(target, content):
        target.write_bytes(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(durable_files, "write_and_sync", write_half)
    with pytest.raises(OutputError, match="no space left on device"):
        save_model(model, path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt"]


def test_the_final_name_appears_only_when_the_file_is_whole(model, tmp_path, monkeypatch):
    path, seen, write = tmp_path / "model.pt", [], durable_files.write_and_sync

    def look_while_writing(target, content):
        write(target, content)
        seen.append(path.exists())

    monkeypatch.setattr(durable_files, "write_and_sync", look_while_writing)
    save_model(model, path)
    assert seen == [False]
    assert path.exists()


DESCRIPTION = ModelDescription(("Tair_h", "sst_h", "hs_h"), ("aice_h", "hi_h"), ("C", "C", "m"), ("1", "m"))
MODELS = {
    "icenet": {"hidden_activation": "sigmoid"},
    "mlp": {"name": "mlp", "hidden_layers": 3, "hidden_activation": "tanh", "batch_norm": True, "dropout": 0.5},
    "cnn": {"name": "cnn", "periodic": True, "batch_norm": True, "kernel_size": 5},
    "unet": {
        "name": "unet",
        "periodic": True,
        "batch_norm": True,
        "hidden_layers": 2,
        "hidden_size": 4,
        "dropout": 0.1,
    },
    "own": {"name": "torch.nn:GRUCell"},
}
LOAD_ELSEWHERE = """
import sys, warnings
import torch
warnings.simplefilter("ignore")
model, inputs = torch.jit.load(sys.argv[1]), torch.jit.load(sys.argv[2]).inputs
with torch.no_grad():
    jacobian = [model.jac(inputs) for _ in range(3)][-1]
print(model.input_names, model.target_names, model.input_units, model.target_units)
print(float((jacobian - torch.jit.load(sys.argv[2]).jacobian).abs().max()), *jacobian.shape)
"""


def trained(settings, dtype=torch.float64):
    """A model whose buffers are no longer as they started."""
    model = build_model(network_settings(**settings), 3, 2, seed=2, dtype=dtype)
    model.set_normalization(*(torch.tensor(values) for values in ([1, -2, 3], [0.5, 2, 1], [5, 6], [10, 0.1])))
    model(inputs_of(settings, dtype))
    update_running_statistics(model, take_batch_sums(model))
    return model


def inputs_of(settings, dtype=torch.float64):
    shape = (4, 3, 7, 9) if settings.get("name") in ("cnn", "unet") else (4, 3)
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("settings", MODELS.values(), ids=MODELS)
def test_every_model_comes_back_with_its_jacobian_and_names(settings, dtype, tmp_path):
    model, inputs = trained(settings, dtype), inputs_of(settings, dtype)
    apply_gradient_checkpointing(model)
    save_model(model, tmp_path / "model.pt", DESCRIPTION)
    check_saved(tmp_path / "model.pt", model, inputs)
    loaded = load_and_run_code(tmp_path / "model.pt")
    assert list(loaded.state_dict()) == list(model.state_dict())
    assert all(
        torch.equal(a, b) for a, b in zip(loaded.state_dict().values(), model.state_dict().values(), strict=True)
    )
    assert (tuple(loaded.input_names), tuple(loaded.target_units)) == (
        DESCRIPTION.input_names,
        DESCRIPTION.target_units,
    )
    assert torch.equal(loaded(inputs[:1]), model.eval()(inputs[:1]))
    if inputs.dim() == 2:
        _, jacobian = input_jacobian(model, inputs)
        assert jacobian.abs().min() > 0
        tolerance = 1e-12 if dtype == torch.float64 else 1e-5
        torch.testing.assert_close(loaded.jac(inputs), jacobian, rtol=tolerance, atol=0)
    else:
        with pytest.raises(torch.jit.Error, match="two dimensions"):
            loaded.jac(inputs)


class Reference(nn.Module):
    """A file of two tensors."""

    def __init__(self, inputs, jacobian):
        super().__init__()
        self.register_buffer("inputs", inputs)
        self.register_buffer("jacobian", jacobian)


def test_another_process_without_the_package_computes_the_jacobian(tmp_path, recwarn):
    model, inputs = trained(MODELS["icenet"]), inputs_of(MODELS["icenet"])
    save_model(model, tmp_path / "model.pt", DESCRIPTION)
    torch.jit.save(torch.jit.script(Reference(inputs, input_jacobian(model, inputs)[1])), str(tmp_path / "numbers.pt"))
    recwarn.clear()
    done = launch(["-c", LOAD_ELSEWHERE, "model.pt", "numbers.pt"], cwd=tmp_path, environ={"PYTHONPATH": ""})
    assert done.returncode == 0, done.stderr
    names, numbers = done.stdout.splitlines()
    assert names == "['Tair_h', 'sst_h', 'hs_h'] ['aice_h', 'hi_h'] ['C', 'C', 'm'] ['1', 'm']"
    difference, *shape = numbers.split()
    assert float(difference) < 1e-12
    assert shape == ["4", "2", "3"]


class Untyped(nn.Module):
    """Ordinary Python that the compiler does not know and a trace records."""

    def __init__(self, num_rows=None):
        super().__init__()
        self.line, self.num_rows, self.calls = nn.Linear(3, 2), num_rows, {"forward": lambda x: torch.tanh(x)}

    def forward(self, inputs, **options):
        answer = self.calls["forward"](self.line(inputs))
        return answer if self.num_rows is None else answer * len([row for row in inputs])


def test_an_own_network_beyond_the_compiler_is_traced(tmp_path):
    model = NormalizedModel(Untyped(), 3, 2)
    model.set_normalization(torch.ones(3), 2 * torch.ones(3), torch.ones(2), torch.ones(2))
    save_model(model, tmp_path / "model.pt", DESCRIPTION)
    for num_rows in (1, 3, 10):
        inputs = torch.randn(num_rows, 3)
        check_saved(tmp_path / "model.pt", model, inputs)
        loaded = load_and_run_code(tmp_path / "model.pt")
        torch.testing.assert_close(loaded.jac(inputs), input_jacobian(model, inputs)[1])
    assert "network.line.weight" in loaded.state_dict()


def test_an_own_network_over_fields_is_traced_too(tmp_path):
    class Fields(Untyped):
        def forward(self, inputs, **options):
            return self.calls["forward"](self.line(inputs.movedim(1, 3)).movedim(3, 1))

    model, inputs = NormalizedModel(Fields(), 3, 2), torch.randn(2, 3, 5, 6)
    save_model(model, tmp_path / "model.pt", sample_inputs=inputs)
    check_saved(tmp_path / "model.pt", model, inputs)
    save_model(model, tmp_path / "again.pt")
    check_saved(tmp_path / "again.pt", model, inputs)


def test_a_trace_that_holds_for_its_rows_only_is_refused(tmp_path):
    with pytest.raises(
        OutputError, match=r"model.pt: the network can be neither compiled .* nor traced \(.*for 1 rows"
    ) as caught:
        save_model(NormalizedModel(Untyped(num_rows=1), 3, 2), tmp_path / "model.pt")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_other_numbers_does_not_pass_the_check(model, tmp_path):
    path = tmp_path / "model.pt"
    save_model(model, path)
    with torch.no_grad():
        model.fc2.bias += 1e-6
    with pytest.raises(OutputError, match=r"model.pt: its outputs differ"):
        check_saved(path, model, torch.zeros(2, 7))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(OutputError, match=r"model.pt: cannot be used after writing \(RuntimeError: "):
        check_saved(path, model, torch.zeros(2, 7))


def test_one_compiled_model_writes_each_of_its_architecture(tmp_path):
    settings = network_settings(name="mlp", batch_norm=True)
    first, second = (build_model(settings, 7, 1, seed, torch.float32) for seed in (0, 1))
    scripted, path = script_model(first, tmp_path / "model.pt"), tmp_path / "model.pt"
    for network in (first, second, first):
        scripted.write(network, path)
        save_model(network, tmp_path / "other.pt")
        assert path.read_bytes() == (tmp_path / "other.pt").read_bytes()
