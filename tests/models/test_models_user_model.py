"""The user's own network: found, wrapped, and every way to get it wrong said in one line."""

import sys

import pytest
import torch
from networks import network_settings

from mpitrain.errors import ConfigError
from mpitrain.models.batch_norm import VirtualBatchNorm
from mpitrain.models.build import build_model
from mpitrain.models.user_model import check_answers

CODE = """
import torch
from torch import nn
number = 3
class Net(nn.Module):
    def __init__(self, num_inputs, num_outputs):
        super().__init__()
        self.line = nn.Linear(num_inputs, num_outputs)
        self.norm = nn.BatchNorm1d(num_outputs)
    def forward(self, x):
        return self.norm(self.line(x))
def make(num_inputs, num_outputs):
    return Net(num_inputs, num_outputs)
def dictionary(num_inputs, num_outputs):
    return {}
def raises(num_inputs, num_outputs):
    raise ValueError("first line\\nsecond line")
def one_argument(size):
    return nn.Linear(size, size)
def leaves(num_inputs, num_outputs):
    raise SystemExit(3)
def empty(num_inputs, num_outputs):
    return nn.ReLU()
def lazy(num_inputs, num_outputs):
    return nn.LazyLinear(num_outputs)
def untracked(num_inputs, num_outputs):
    return nn.Sequential(nn.Linear(num_inputs, num_outputs), nn.BatchNorm1d(num_outputs, track_running_stats=False))
def flat(num_inputs, num_outputs):
    return nn.Sequential(nn.Linear(num_inputs, 1), nn.Flatten(0))
def wrong_width(num_inputs, num_outputs):
    return nn.Linear(num_inputs + 1, num_outputs)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "own_networks.py").write_text(CODE)
    (tmp_path / "broken_networks.py").write_text("def make(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield tmp_path
    for name in ("own_networks", "broken_networks"):
        sys.modules.pop(name, None)


def build(name, num_inputs=3, num_outputs=2):
    return build_model(network_settings(name=name), num_inputs, num_outputs, seed=1)


@pytest.mark.parametrize("name", ["Net", "make"])
def test_a_network_of_the_current_directory(folder, name):
    model = build(f"own_networks:{name}").eval()
    model.set_normalization(torch.ones(3), 2 * torch.ones(3), torch.tensor([5.0, 6.0]), torch.tensor([7.0, 8.0]))
    inputs = torch.randn(4, 3)
    expected = model.network((inputs - 1) / 2) * torch.tensor([7.0, 8.0]) + torch.tensor([5.0, 6.0])
    torch.testing.assert_close(model(inputs), expected)
    assert isinstance(model.network.norm, VirtualBatchNorm)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), build("own_networks:Net").parameters(), strict=True)
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere_to_be_found:Net", r"cannot be imported \(ModuleNotFoundError: No module .*; give a module of the"),
        ("broken_networks:make", r"broken_networks cannot be imported \(SyntaxError"),
        ("own_networks:Nett", r"own_networks has no 'Nett'; give the name"),
        ("own_networks:number", r"'number' is int, not callable"),
        ("own_networks:raises", r"raises\(3, 2\) failed \(ValueError: first line\) at own_net.*py:\d+; it is called"),
        ("own_networks:one_argument", r"failed \(TypeError: "),
        ("own_networks:leaves", r"failed \(SystemExit: 3\)"),
        ("own_networks:dictionary", r"returned dict; return a torch.nn.Module"),
        ("own_networks:empty", r"no parameters to train"),
        ("own_networks:lazy", r"lazy layers; give each layer its size"),
        ("own_networks:untracked", r"track_running_stats=False; leave"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_is_said_in_one_line(folder, name, words):
    with pytest.raises(ConfigError, match=words) as caught:
        build(name)
    assert str(caught.value).startswith(f"model.name={name}: ")
    assert "\n" not in str(caught.value)


def test_answers_are_tried_before_training(folder):
    inputs = torch.randn(4, 3)
    check_answers("own_networks:Net", build("own_networks:Net"), inputs, 2)
    with pytest.raises(ConfigError, match=r"it returns \(.*return shape \(4, 2\)"):
        check_answers("own_networks:flat", build("own_networks:flat"), inputs, 2)
    with pytest.raises(ConfigError, match=r"forward fails on inputs of shape \(4, 3\) \(RuntimeError: "):
        check_answers("own_networks:wrong_width", build("own_networks:wrong_width"), inputs, 2)
