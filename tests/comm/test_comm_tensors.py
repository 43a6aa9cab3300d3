"""Which device and which backend a rank takes, and what is refused."""

import pytest
import torch
from played_ranks import on_played_ranks, played_ranks_of

from mpitrain.cluster.rank_info import RankInfo
from mpitrain.comm import tensors
from mpitrain.comm.device import Device, choose_device
from mpitrain.comm.ranks import Ranks
from mpitrain.comm.tensors import choose_backend, settle_order_and_threads, settle_tensors
from mpitrain.config import ComputeSection, RunConfig, TrainingSection
from mpitrain.errors import LaunchError

CPU, GPU = Device("cpu"), Device("cuda:0")


def ranks_over(transport):
    return Ranks(RankInfo(0, 2, 0, 2, 0, 1, "test"), None, None, transport, "host", 4)


def config_with(backend, semantics="standard"):
    return RunConfig(semantics=semantics, compute=ComputeSection(backend=backend))


@pytest.mark.parametrize(
    ("requested", "device", "transport", "chosen"),
    [("auto", CPU, "mpi", "mpi"), ("auto", CPU, "torch", "gloo"), ("auto", GPU, "mpi", "nccl"),
     ("auto", GPU, "torch", "nccl"), ("gloo", CPU, "mpi", "gloo"), ("mpi", CPU, "mpi", "mpi"),
     ("nccl", GPU, "mpi", "nccl"), ("nccl_if_available", GPU, "mpi", "nccl")],
)  # fmt: skip
def test_backend(requested, device, transport, chosen):
    ranks = ranks_over(transport)
    assert choose_backend("standard", requested, device, ranks) == chosen
    assert ranks.notices == []


@pytest.mark.parametrize(("transport", "chosen"), [("mpi", "mpi"), ("torch", "gloo")])
def test_nccl_of_older_files_gives_way_with_one_line(transport, chosen):
    ranks = ranks_over(transport)
    assert choose_backend("standard", "nccl_if_available", CPU, ranks) == chosen
    assert len(ranks.notices) == 1
    assert f"no GPU here, so {chosen} is used" in ranks.notices[0]


@pytest.mark.parametrize(
    ("requested", "device", "transport", "words"),
    [("nccl", CPU, "mpi", "no GPU on this rank"), ("mpi", CPU, "torch", "these ranks do not use MPI"),
     ("mpi", GPU, "mpi", "supports CPU tensors only"), ("gloo", GPU, "mpi", "supports CPU tensors only")],
)  # fmt: skip
def test_a_backend_that_cannot_serve_is_refused(requested, device, transport, words):
    with pytest.raises(LaunchError, match=words) as refused:
        choose_backend("standard", requested, device, ranks_over(transport))
    assert refused.value.exit_code == 3


def test_reference_semantics_speak_mpi_only():
    assert choose_backend("reference", "auto", CPU, ranks_over("mpi")) == "mpi"
    with pytest.raises(LaunchError, match="semantics=reference needs MPI between the ranks"):
        choose_backend("reference", "auto", CPU, ranks_over("torch"))


@pytest.mark.parametrize(("reduction", "threads"), [(None, 1), ("fixed", 1), ("any", 2)])
def test_two_ranks_share_four_cores_only_where_no_bits_are_promised(monkeypatch, reduction, threads):
    monkeypatch.setattr(Ranks, "set_torch_threads", lambda ranks: None)  # which are the whole process's
    ranks = ranks_over("mpi")
    settle_order_and_threads(ranks, "standard", TrainingSection(reduction=reduction))
    assert ranks.num_threads == threads


@pytest.mark.parametrize("gpus", [["A", "A"], ["A", None], [None, "A"]])
def test_ranks_without_a_gpu_of_their_own_are_refused(monkeypatch, gpus):
    monkeypatch.setattr(tensors, "choose_device", lambda requested, local_rank: Device(f"cuda:{local_rank}"))
    monkeypatch.setattr(Device, "gpu", property(lambda device: gpus[int(device.partition(":")[2])]))

    def start(communicator):
        ranks = played_ranks_of(communicator)
        with pytest.raises(LaunchError) as error:
            settle_tensors(ranks, "standard", ComputeSection(), TrainingSection())
        return str(error.value)

    first, second = on_played_ranks(2, start)
    rank = (
        "ranks 0 and 1 share the GPU A"
        if all(gpus)
        else f"rank {gpus.index(None)} on here has no GPU, other ranks have one"
    )
    assert first == second
    assert rank in first
    assert first.endswith(", or compute.device=cpu")


@pytest.mark.parametrize(
    ("requested", "num_visible", "local_rank", "device"),
    [("auto", 0, 0, "cpu"), ("cpu", 4, 1, "cpu"), ("auto", 4, 3, "cuda:3"), ("cuda", 4, 1, "cuda:1"),
     ("cuda", 1, 3, "cuda:0")],
)  # fmt: skip
def test_device(monkeypatch, requested, num_visible, local_rank, device):
    _show_gpus(monkeypatch, num_visible)
    assert choose_device(requested, local_rank) == device


@pytest.mark.parametrize(
    ("requested", "num_visible", "local_rank", "words"),
    [("cuda", 0, 0, "this rank sees no GPU"),
     ("cuda", 2, 2, "2 visible; start at most one rank per visible GPU on each node"),
     ("auto", 2, 5, "local rank 5 has no GPU: 2 visible")],
)  # fmt: skip
def test_a_device_that_is_not_there_is_refused(monkeypatch, requested, num_visible, local_rank, words):
    _show_gpus(monkeypatch, num_visible)
    with pytest.raises(LaunchError, match=words):
        choose_device(requested, local_rank)


def _show_gpus(monkeypatch, number):
    monkeypatch.setattr("mpitrain.comm.device.has_gpu_driver", lambda: number > 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: number)
