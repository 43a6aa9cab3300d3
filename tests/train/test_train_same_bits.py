"""`semantics=standard`: one result, bit for bit, on any number of ranks up to the virtual ones, with either MPI."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import losses_of, train

from mpitrain.models.files.torchscript import load_and_run_code
from mpitrain.train.checkpoint.format import weights_sha256

OPENMPI_PYTHON = os.environ.get("MPITRAIN_OPENMPI_PYTHON", "")
needs_openmpi = pytest.mark.skipif(
    not Path(OPENMPI_PYTHON).is_file(),
    reason="MPITRAIN_OPENMPI_PYTHON names no Python with Open MPI; tests/run.sh does",
)

Result = tuple[str, list[tuple[float, float | None]]]


def train_to_result(folder: Path, num_ranks: int, *settings: str, python: str = sys.executable) -> Result:
    """Return the hash of the exported weights and all losses, which are compared as exact numbers."""
    done = train(num_ranks, folder, *settings, python=python)
    assert done.returncode == 0, done.stderr
    return weights_sha256(weights_of(folder)), losses_of(folder)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: value.detach() for name, value in load_and_run_code(folder / "model.pt").named_parameters()}


@pytest.fixture(scope="module")
def settings(small_history: Path) -> tuple[str, ...]:
    # 50 is no multiple of 8 virtual ranks, and the last batch of an epoch is a short one.
    return (f"data.data_path={small_history}", "training.epochs=2", "training.global_batch_size=50")


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory, settings: tuple[str, ...]) -> tuple[Path, Result]:
    """The run that all others must equal."""
    folder = tmp_path_factory.mktemp("one_process") / "run"
    return folder, train_to_result(folder, 1, *settings)


@pytest.mark.parametrize(
    ("python", "counts"),
    [
        pytest.param(sys.executable, (3, 8), id="this_mpi"),
        pytest.param(sys.executable, (2, 4), id="this_mpi_at_many", marks=pytest.mark.lab),
        # The other library is compared with this one's results: a few counts tell.
        pytest.param(OPENMPI_PYTHON, (2, 3), id="openmpi", marks=[pytest.mark.lab, needs_openmpi]),
    ],
)
def test_one_result_for_all_rank_counts(
    tmp_path: Path, settings: tuple[str, ...], one_process: tuple[Path, Result], python: str, counts: Sequence[int]
) -> None:
    results = {count: train_to_result(tmp_path / f"np{count}", count, *settings, python=python) for count in counts}
    assert results == dict.fromkeys(counts, one_process[1])


def test_one_result_of_the_eager_engine(tmp_path: Path, settings: tuple[str, ...]) -> None:
    counts = (1, 3)
    results = [train_to_result(tmp_path / f"np{count}", count, *settings, "training.engine=eager") for count in counts]
    assert results == results[:1] * len(counts)


@pytest.fixture(scope="module")
def shorter(tmp_path_factory: pytest.TempPathFactory, settings: tuple[str, ...]) -> tuple[Path, Result]:
    """The same run with an epoch less: what a comparison must tell apart."""
    folder = tmp_path_factory.mktemp("shorter") / "run"
    return folder, train_to_result(folder, 2, *settings, "training.epochs=1")


def test_an_epoch_less_gives_another_result(shorter: tuple[Path, Result], one_process: tuple[Path, Result]) -> None:
    """What the tests above compare would show a difference."""
    assert shorter[1][0] != one_process[1][0]
    assert shorter[1][1] != one_process[1][1]


@pytest.mark.lab
def test_fewer_samples_than_virtual_ranks(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    path = tmp_path / "tiny.npz"
    np.savez(path, inputs=random.normal(size=(5, 7)), targets=random.uniform(size=5))
    settings = (f"data.data_path={path}", "data.validation_split=0.4", "training.epochs=3")
    results = [train_to_result(tmp_path / f"np{count}", count, *settings) for count in (1, 8)]
    assert results[0] == results[1]
    assert all(np.isfinite(loss) for loss, _ in results[0][1])


@pytest.mark.lab
def test_any_reduction_differs_by_rounding_only(
    tmp_path: Path, settings: tuple[str, ...], one_process: tuple[Path, Result], shorter: tuple[Path, Result]
) -> None:
    folder = tmp_path / "run"
    train_to_result(folder, 3, *settings, "training.reduction=any")
    fixed, free = weights_of(one_process[0]), weights_of(folder)
    assert all(torch.allclose(free[name], fixed[name], rtol=0, atol=1e-5) for name in fixed)
    np.testing.assert_allclose(losses_of(folder), one_process[1][1], rtol=1e-4)
    # An epoch less is far outside these bounds.
    short = weights_of(shorter[0])
    assert not all(torch.allclose(short[name], fixed[name], rtol=0, atol=1e-3) for name in fixed)
