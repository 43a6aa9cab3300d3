"""A network that Python gives as an object: training begins at its weights; the run predicts and goes on."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import launch
from safetensors.numpy import load_file

import mpitrain
from mpitrain.errors import UserError

NET = """import torch

class Net(torch.nn.Module):
    def __init__(self, inputs, outputs, width=8):
        super().__init__()
        self.first = torch.nn.Linear(inputs, width)
        self.last = torch.nn.Linear(width, outputs)
        self.register_buffer("scale", torch.full((1,), 2.0), persistent=False)

    def forward(self, x):
        return self.scale * self.last(self.first(x).tanh() if len(x) else self.first(x))
"""
A, Z = np.random.default_rng(3).normal(size=(2, 200))
ROWS = {"a": A, "z": Z, "b": 2 * A - Z}
HOW: dict[str, Any] = {"inputs": ["a", "z"], "targets": ["b"], "quiet": True, "training.average": None}
SCRIPT = """
import numpy as np
import torch
import mpitrain
{source}
rows = np.load("rows.npz")
torch.manual_seed({seed})
rows = {{name: rows[name] for name in rows}}
run = mpitrain.train(rows, inputs=["a", "z"], targets=["b"], epochs=2, output="{output}", quiet=True, model=Net(2, 1))
print("predicted", run.predict(rows)["b"].shape, run.weights_sha256)
"""


@pytest.fixture
def net_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "mine.py").write_text(NET)
    np.savez(tmp_path / "rows.npz", **ROWS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return importlib.import_module("mine").Net


def test_it_begins_at_its_weights_and_is_left_as_it_is(net_class: Any, tmp_path: Path) -> None:
    net = net_class(2, 1)
    before = {name: one.clone() for name, one in net.state_dict().items()}
    run = mpitrain.train(ROWS, model=net, epochs=1, output="run", lr=1e-30, **HOW)
    assert all(torch.equal(one, before[name]) for name, one in net.state_dict().items())
    kept = load_file(tmp_path / "run" / "model.safetensors")
    assert all(np.array_equal(kept[f"network.{name}"], one.numpy()) for name, one in before.items())
    inputs = torch.as_tensor((np.stack([A, Z], 1) - kept["input_mean"]) / kept["input_std"]).float()
    expected = net(inputs).detach().numpy() * kept["output_std"] + kept["output_mean"]
    np.testing.assert_allclose(run.predict(ROWS)["b"], expected[:, 0], rtol=1e-4, atol=1e-5)
    assert run.export("net.pt").is_file()


def test_the_run_goes_on_with_a_network_made_anew_or_without(net_class: Any) -> None:
    first = mpitrain.train(ROWS, model=net_class(2, 1), epochs=2, output="run", **HOW).weights_sha256
    again = mpitrain.train(ROWS, model=net_class(2, 1), epochs=3, output="run", resume=True, **HOW)
    assert len(again.metrics["epoch"]) == 3
    assert mpitrain.train(ROWS, epochs=4, output="run", resume=True, quiet=True).weights_sha256 != first
    with pytest.raises(UserError, match="run: holds a run of another network than model; leave out resume, or model"):
        mpitrain.train(ROWS, model=net_class(2, 1, width=4), epochs=5, output="run", resume=True, **HOW)


def test_another_forward_of_the_same_structure_is_said(net_class: Any, recwarn: pytest.WarningsRecorder) -> None:
    mpitrain.train(ROWS, model=net_class(2, 1), epochs=1, output="run", **HOW)
    mpitrain.train(ROWS, model=net_class(2, 1), epochs=2, output="run", resume=True, **HOW)
    assert not [one for one in recwarn if "forward" in str(one.message)]
    Path("mine.py").write_text(NET.replace("tanh()", "sin()"))
    sys.modules.pop("mine")
    other = importlib.import_module("mine").Net(2, 1)
    with pytest.warns(UserWarning, match="model: its code has changed since the run in run started; "):
        mpitrain.train(ROWS, model=other, epochs=3, output="run", resume=True, **HOW)


def test_a_moved_run_predicts_on_trust(net_class: Any, tmp_path: Path) -> None:
    expected = mpitrain.train(ROWS, model=net_class(2, 1), epochs=1, output="run", **HOW).predict(ROWS)["b"]
    shutil.move(tmp_path / "run", tmp_path / "moved")
    with pytest.raises(UserError, match="give trust_code=True"):
        mpitrain.predict("moved", ROWS)
    np.testing.assert_array_equal(mpitrain.predict("moved", ROWS, trust_code=True)["b"], expected)
    with pytest.raises(UserError, match="give trust_code=True"):
        mpitrain.train(ROWS, model=net_class(2, 1), epochs=9, output="moved", resume=True, **HOW)


def test_the_package_s_own_code_is_given_with_its_options(net_class: Any, tmp_path: Path) -> None:
    mpitrain.train(ROWS, model=net_class(2, 1), epochs=1, output="run", **HOW)
    shutil.move(tmp_path / "run", tmp_path / "moved")
    name = "mpitrain.python.given_network:network"
    with pytest.raises(UserError, match="names code, which would be run; give trust_code=True"):
        mpitrain.train(ROWS, output="moved", resume=True, epochs=2, quiet=True, **{"model.name": name})


def test_what_is_trained_again_begins_at_the_same_weights(net_class: Any, tmp_path: Path) -> None:
    rows = np.stack([A, Z, 2 * A - Z], axis=1)
    np.savetxt(tmp_path / "rows.csv", rows, delimiter=",", header="a,z,b", comments="")
    first = mpitrain.train("rows.csv", model=net_class(2, 1), epochs=2, output="run", **HOW).weights_sha256
    done = launch(["-P", "-m", "mpitrain", "reproduce", "run", "--output", "again", "--trust-code"], None, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert mpitrain.open("again").weights_sha256 == first
    mpitrain.train(output="run", resume=True, epochs=3, quiet=True)
    done = launch(["-P", "-m", "mpitrain", "train", "run/config.yaml", "--overwrite", "--epochs", "2"], None, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert mpitrain.open("run").weights_sha256 == first


@pytest.mark.parametrize("engine", ["eager", "ddp", "auto"])
def test_frozen_tied_and_unkept_parts_train(net_class: Any, tmp_path: Path, engine: str) -> None:
    class_text = """
class Odd(Net):
    def __init__(self):
        super().__init__(2, 1, 2)
        self.second = torch.nn.Linear(2, 2, bias=False)
        self.third = torch.nn.Linear(2, 2, bias=False)
        self.third.weight = self.second.weight
        self.first.requires_grad_(False)

    def forward(self, x):
        return super().forward(self.third(self.second(x)))
"""
    sys.modules.pop("odd", None)
    (tmp_path / "odd.py").write_text("import torch\nfrom mine import Net\n" + class_text)
    odd = importlib.import_module("odd").Odd()
    how = {**HOW, "training.engine": engine}
    run = mpitrain.train(ROWS, model=odd, epochs=2, output="run", **how)
    kept = load_file(tmp_path / "run" / "model.safetensors")
    assert np.array_equal(kept["network.first.weight"], odd.first.weight.numpy())
    assert not np.array_equal(kept["network.second.weight"], odd.second.weight.detach().numpy())
    assert np.array_equal(kept["network.second.weight"], kept["network.third.weight"])
    assert run.predict(ROWS)["b"].shape == (200,)
    assert mpitrain.train(ROWS, model=odd, epochs=3, output="run", resume=True, **how).metrics["epoch"][-1] == 3


@pytest.mark.filterwarnings("ignore")  # of torch
def test_what_cannot_be_handed_over_ends_in_one_line(net_class: Any, tmp_path: Path) -> None:
    infinite, imaginary, slashed, old, new, own = (net_class(2, 1) for _ in range(6))
    infinite.last.bias.data[0] = torch.inf
    imaginary.first = torch.nn.Linear(2, 8, dtype=torch.complex64)
    slashed.register_parameter("a/b", torch.nn.Parameter(torch.ones(1)))
    old.first = torch.nn.utils.weight_norm(old.first)
    new.first = torch.nn.utils.parametrizations.weight_norm(new.first)
    own.hook = lambda _, of=(one for one in "abc"): of
    compiled = net_class(2, 1)
    compiled.last = torch.compile(compiled.last)
    cases = {
        infinite: "model: its parameter last.bias holds a value that is not finite; correct it first",
        imaginary: "model: its parameter first.weight is complex; correct it first",
        net_class(2, 1).to("meta"): "model: its parameter first.weight is on the meta device, without values; correct",
        slashed: "model: its parameter a/b has a name with a slash; correct it first",
        torch.compile(net_class(2, 1)): "model: was compiled by torch.compile; give the original module",
        compiled: "model: was compiled by torch.compile; give the original module",
        old: "model: cannot be pickled .*weight_norm.*; give its class, as model.name=module:class",
        new: "model: cannot be pickled .*parametrized.*; give its class, as model.name=module:class",
        own: "model: cannot be pickled .*; give its class, as model.name=module:class",
    }
    for model, words in cases.items():
        with pytest.raises(UserError, match=words):
            mpitrain.train(ROWS, model=model, epochs=1, output="run", **HOW)
        assert not (tmp_path / "run").exists()


def test_what_cannot_serve_ends_in_one_line_and_leaves_no_folder(net_class: Any, tmp_path: Path) -> None:
    local, lazy = net_class(2, 1), net_class(2, 1)
    local.hook = (one for one in ())
    lazy.first = torch.nn.LazyLinear(8)
    large = net_class(2, 1)
    large.register_buffer("table", torch.rand(30_000))
    cases = [
        (net_class(3, 1), {}, r"its forward fails on inputs of shape \(\d+, 2\)"),
        (local, {}, r"model: cannot be pickled \(.*generator.*\); give its class"),
        (lazy, {}, "model: has lazy layers .*; call it once first"),
        (large, {}, r"model: pickled without its parameters it has \d+,\d+ characters, 100,000 are"),
        (net_class, {}, r"model: Net is a class; give an object, as model=Net\(3, 1\)"),
        (net_class(2, 1), {"model.hidden_size": 8}, "model.hidden_size: has no effect on a network that is an object"),
    ]
    for model, more, words in cases:
        with pytest.raises(UserError, match=words) as raised:
            mpitrain.train(ROWS, model=model, epochs=1, output="run", **more, **HOW)
        assert len(str(raised.value)) < 500
        assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match="model: each member has its own initial weights; give the class"):
        mpitrain.ensemble(ROWS, model=net_class(2, 1), members=2, inputs=["a", "z"], targets=["b"])


def test_ranks_of_a_script_take_the_roots_network(net_class: Any, tmp_path: Path) -> None:
    script = SCRIPT.format(source="from mine import Net", seed="__import__('os').getpid()", output="run")
    (tmp_path / "script.py").write_text(script)
    done = launch(["script.py"], 2, tmp_path)
    assert done.returncode == 0, done.stderr
    hashes = re.findall(r"predicted \(200,\) ([0-9a-f]{64})", done.stdout)  # the lines of two ranks may run together
    assert len(hashes) == 2
    assert len(set(hashes)) == 1


def test_a_class_of_the_script_itself_needs_cloudpickle(net_class: Any, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(source=NET, seed=1, output="run"))
    without = "import runpy, sys; sys.modules['cloudpickle'] = None; runpy.run_path('script.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", without], cwd=tmp_path, capture_output=True, text=True)
    assert "model: Net is defined in this session, other processes cannot import" in done.stderr
    assert "python -m pip install cloudpickle" in done.stderr
    pytest.importorskip("cloudpickle")
    done = launch(["script.py"], None, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("predicted (200,) ")
