"""The batch alone decides how it is computed: one hash on any number of ranks, and the hash of before by name."""

from pathlib import Path

import pytest
from conftest import train
from safetensors.numpy import load_file

NETWORK = ("model.name=mlp", "model.hidden_layers=2", "model.hidden_size=16", "training.epochs=2")
# Of 16 samples 2 microbatches, which leaves ranks idle; of 1000 there are 64.
CASES = {
    "2 microbatches": ("training.global_batch_size=16",),
    "64 microbatches": ("training.global_batch_size=1000", "model.residual=true", "model.dropout=0.1"),
    "64 microbatches of 8 streams": ("training.global_batch_size=1000", "data.streaming=true"),
    "batch norm": ("training.global_batch_size=1000", "model.batch_norm=true"),
    "2 microbatches, recorded": ("training.global_batch_size=16", "training.engine=traced"),
    "2 microbatches, one by one": ("training.global_batch_size=16", "training.engine=eager", "training.max_steps=20"),
    "full": ("training.global_batch_size=full",),
}
STOPPED = 5


def weights_after(folder: Path, num_ranks: int, *settings: str) -> dict[str, bytes]:
    done = train(num_ranks, folder, *settings)
    assert done.returncode in (0, STOPPED), done.stderr
    return bits_of(folder)


def bits_of(folder: Path) -> dict[str, bytes]:
    newest = (folder / "checkpoints" / "latest").resolve()
    return {
        name: array.tobytes()
        for file in sorted(newest.rglob("*.safetensors"))
        for name, array in load_file(file).items()
    }


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case in ("2 microbatches", "64 microbatches of 8 streams") else pytest.mark.lab)
        for case in CASES
    ],
)
def test_one_result_on_one_rank_and_on_three(tmp_path: Path, case: str) -> None:
    alone, of_three = (weights_after(tmp_path / str(n), n, *NETWORK, *CASES[case]) for n in (1, 3))
    assert alone
    assert of_three == alone


@pytest.mark.lab
def test_a_run_goes_on_with_ranks_that_have_nothing_to_compute(tmp_path: Path) -> None:
    settings = (*NETWORK, *CASES["2 microbatches"])
    whole = weights_after(tmp_path / "whole", 1, *settings)
    weights_after(tmp_path / "parted", 1, *settings, "training.max_steps=30")
    done = train(3, tmp_path / "parted", *settings, "training.max_steps=null", "--resume")
    assert done.returncode == 0, done.stderr
    assert "1 of 3 ranks are idle; a batch of 32 would use 3 ranks" in done.stderr + done.stdout
    assert bits_of(tmp_path / "parted") == whole


@pytest.mark.parametrize(("batch", "digits"), [("1000", "aed1d08b9a48"), ("full", "1195adadc6ea")])
def test_runs_of_before_keep_their_hash(tmp_path: Path, batch: str, digits: str) -> None:
    of_before = (f"training.global_batch_size={batch}", "training.virtual_ranks=8")
    done = train(1, tmp_path / "run", "model.name=mlp", "model.hidden_layers=2", "training.epochs=2", *of_before)
    assert f"SHA-256 {digits}" in done.stdout, done.stdout + done.stderr
