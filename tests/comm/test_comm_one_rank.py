"""The ways between ranks with one rank of the real libraries, and choices between them on played ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI
from played_ranks import on_played_ranks, played_ranks_of

from mpitrain.comm import data_parallel
from mpitrain.comm.agent.arrival import watch_all
from mpitrain.comm.mpi.communicator import MpiCommunicator
from mpitrain.comm.mpi.library import read_mpi_library
from mpitrain.comm.mpi.tensor_memory import TensorMemory
from mpitrain.comm.probes import measurements, transports
from mpitrain.comm.torch_backend import TorchCommunicator

VALUE = {"a": [1, 2.5, None], "b": "x"}


@pytest.fixture
def alone_over_mpi() -> MpiCommunicator:
    return MpiCommunicator(MPI.COMM_WORLD)


@pytest.fixture
def alone_over_torch() -> Iterator[TorchCommunicator]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    communicator = TorchCommunicator()
    yield communicator
    communicator.close()


@pytest.mark.parametrize("way", ["alone_over_mpi", "alone_over_torch"])
@pytest.mark.parametrize("make", [np.arange, torch.arange])
def test_every_collective_of_one_rank_returns_what_it_was_given(
    request: pytest.FixtureRequest, way: str, make: Any
) -> None:
    communicator, given = request.getfixturevalue(way), make(6.0).reshape(3, 2)
    array = given + 0
    communicator.all_reduce(array)
    communicator.broadcast(array)
    assert (array == given).all()
    assert (communicator.all_gather(given, [3]) == given).all()
    assert (communicator.all_to_all_rows(given, [3], [3]) == given).all()
    assert communicator.all_gather_object(VALUE) == [VALUE]
    assert communicator.broadcast_object(VALUE) == VALUE


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_of_one_rank_stay_as_they_are(alone_over_mpi: MpiCommunicator, dtype: torch.dtype) -> None:
    for operation in ("sum", "max"):
        values = torch.tensor([1.5, -2.0, 0.25], dtype=dtype)
        alone_over_mpi.all_reduce(values, operation)
        assert values.tolist() == [1.5, -2.0, 0.25]


def test_memory_of_a_node_is_opened_published_and_given_back(alone_over_mpi: MpiCommunicator) -> None:
    shared = alone_over_mpi.node_shared_array((2, 3), np.float32)
    assert shared.fills
    shared.array[...] = 4.0
    shared.publish()
    assert shared.array.sum() == 24.0
    shared.close()


def test_memory_that_mpi_must_not_touch_is_refused() -> None:
    memory, transposed = TensorMemory(MPI), torch.zeros(3, 2).T
    assert memory.numbers_in_place(torch.zeros(3)) is not None
    assert memory.numbers_in_place(transposed) is None
    assert memory.numbers_in_place(torch.zeros(3, dtype=torch.float16)) is None
    for refused in (memory.numbers, memory.buffer):
        with pytest.raises(ValueError, match="contiguous"):
            refused(transposed)
    with pytest.raises(TypeError, match=r"MPI has no sum for torch\.float16"):
        memory.numbers(torch.zeros(3, dtype=torch.float16))


@pytest.mark.parametrize(("gpus", "has_nccl"), [(("a", "b"), True), (("a", "a"), False), (("a", ""), False)])
def test_nccl_is_offered_where_each_rank_has_a_gpu_of_its_own(
    monkeypatch: pytest.MonkeyPatch, gpus: tuple[str, str], has_nccl: bool
) -> None:
    monkeypatch.setattr(transports, "_own_gpu", lambda ranks: gpus[ranks.rank])
    offered = on_played_ranks(2, lambda played: transports.available_transports(played_ranks_of(played)))
    assert offered == [("gloo", "nccl") if has_nccl else ("gloo",)] * 2


def test_that_nobody_watches_is_said_on_all_ranks() -> None:
    def noted(played: Any) -> list[str]:
        ranks: Any = played_ranks_of(played)
        ranks.watch = SimpleNamespace(is_active=False, problem="/tmp/x: is a file" if ranks.rank else "")
        watch_all(ranks)
        return list(ranks.notices)

    (first, second) = on_played_ranks(2, noted)
    assert first == second
    assert first[0].startswith("ranks that exit or hang are not reported (/tmp/x: is a file): set TMPDIR to")


def test_the_probe_s_gradient_is_that_of_the_mean_square() -> None:
    inputs = torch.full((4, 7), 2.0)
    answer = 7 * 2.0 * 0.01 + 0.01
    found = measurements._gradient(measurements._same_model(torch.device("cpu")), inputs)
    torch.testing.assert_close(found, torch.tensor([2 * answer * 2.0] * 7 + [2 * answer]))


def test_the_loaded_library_is_told_by_its_version_and_its_file() -> None:
    found = read_mpi_library()
    assert found.version == MPI.Get_library_version().strip("\0\n ")
    assert Path(found.path).is_file()


@pytest.mark.parametrize(
    ("transport", "num_nodes", "shares"), [("mpi", 1, True), ("mpi", 2, False), ("mpi", 3, False), ("torch", 1, False)]
)
def test_memory_is_shared_by_ranks_of_one_node_over_mpi(transport: Any, num_nodes: int, shares: bool) -> None:
    def body(communicator: Any) -> bool:
        ranks = played_ranks_of(communicator)
        info = replace(ranks.info, num_nodes=num_nodes)
        return replace(ranks, transport=transport, info=info).shares_memory

    assert on_played_ranks(2, body) == [shares, shares]


@pytest.mark.parametrize(("num_gpus", "spreads"), [(0, False), (1, False), (2, True)])
def test_a_model_is_spread_over_several_gpus_alone(
    monkeypatch: pytest.MonkeyPatch, num_gpus: int, spreads: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    monkeypatch.setattr(data_parallel, "DataParallel", lambda model: ("spread", model))
    model = torch.nn.Linear(1, 1)
    found = data_parallel.data_parallel(model)
    assert found == ("spread", model) if spreads else found is model
