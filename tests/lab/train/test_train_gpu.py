"""The engines on a GPU. Each test needs one CUDA device and no launcher."""

import statistics
import threading
import time

import pytest
import torch
import torch.distributed as dist
from played_ranks import PlayedCommunicator
from played_runs import COMMON, MLP, RATE, one_step, points

from mpitrain.cluster.rank_info import RankInfo
from mpitrain.comm.ranks import Ranks
from mpitrain.comm.torch_backend import TorchCommunicator
from mpitrain.config import load_run_config
from mpitrain.data.dataset.exchange import take_share
from mpitrain.runs.prepare import prepare_on_samples

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; torch sees none"),
]
SGD = "training.optimizer.type=sgd"


class GpuRun:
    """One rank's engine on the GPU."""

    def __init__(self, *settings, data=None):
        config = load_run_config(None, [*COMMON, *settings]).config
        alone = PlayedCommunicator(0, [None], threading.Barrier(1))
        self.ranks = Ranks(
            RankInfo(0, 1, 0, 1, 0, 1, "played"), alone, alone if data is None else data, "played", "here",
            device=torch.device("cuda", 0), backend="nccl", reduction=config.training.reduction or "any",
        )  # type: ignore[arg-type]  # fmt: skip
        self.parts = prepare_on_samples(config, take_share(points(), self.ranks), self.ranks)
        self.engine, self.model = self.parts.engine, self.parts.model

    def steps(self, count=4, epoch=0):
        self.engine.start_epoch(epoch)
        return [one_step(self.engine, step, RATE).loss for step in range(count)]

    def weights(self):
        return torch.cat([parameter.detach().cpu().double().reshape(-1) for parameter in self.model.parameters()])


def seconds_a_step(run):
    run.steps()
    times = []
    for epoch in range(30):
        torch.cuda.synchronize()
        started_s = time.perf_counter()
        run.steps(epoch=epoch)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - started_s) / 4)
    return statistics.median(times)


@pytest.mark.parametrize("more", ["type=sgd", "type=adam"])
@pytest.mark.parametrize("clipped", [(), ("training.gradient_clip_norm=0.01",)], ids=["", "clipped"])
def test_a_replayed_graph_is_the_eager_step(more, clipped):
    settings = (*MLP, f"training.optimizer.{more}", *clipped)
    eager, graph = (GpuRun(*settings, f"training.engine={engine}") for engine in ("eager", "cuda_graph"))
    assert graph.steps() == pytest.approx(eager.steps(), rel=1e-6)
    torch.testing.assert_close(graph.weights(), eager.weights(), rtol=1e-5, atol=1e-6)
    assert graph.engine.epoch_loss() == pytest.approx(eager.engine.epoch_loss(), rel=1e-6)


def test_a_replayed_graph_is_faster():
    eager, graph = (seconds_a_step(GpuRun(*MLP, f"training.engine={engine}")) for engine in ("eager", "cuda_graph"))
    print(f"eager {eager * 1e6:.0f} us a step, cuda_graph {graph * 1e6:.0f} us")
    assert graph < eager


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_mixed_precision_is_near_float32(dtype):
    plain = GpuRun(*MLP, SGD, "training.engine=eager")
    narrow = GpuRun(*MLP, SGD, "training.use_amp=true", f"training.amp_dtype={dtype}")
    seen = set()
    narrow.model.network.layers[0].linear.register_forward_hook(lambda *call: seen.add(call[2].dtype))
    if dtype == "float16":
        narrow.engine.restore_state(narrow.engine.gather_state() | {"loss_scale": torch.tensor([64.0, 0.0])})
    losses, narrow_losses = plain.steps(), narrow.steps()
    assert seen == {getattr(torch, dtype)}
    assert narrow_losses == pytest.approx(losses, rel=0.03)
    assert narrow_losses != losses
    assert {parameter.dtype for parameter in narrow.model.parameters()} == {torch.float32}


def test_the_fixed_order_on_a_gpu_gives_the_same_bits_twice():
    one, other = (GpuRun(*MLP, "training.reduction=fixed", "training.engine=eager") for _ in range(2))
    assert one.steps() == other.steps()
    assert torch.equal(one.weights(), other.weights())


@pytest.mark.parametrize("engine", ["eager", "ddp"])
def test_an_nccl_group_of_one_rank(engine):
    alone = GpuRun(*MLP, SGD, "training.engine=eager")
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        run = GpuRun(*MLP, SGD, f"training.engine={engine}", data=TorchCommunicator())
        assert run.steps() == pytest.approx(alone.steps(), rel=1e-6)
        torch.testing.assert_close(run.weights(), alone.weights(), rtol=1e-5, atol=1e-6)
    finally:
        dist.destroy_process_group()


def test_synchronised_batch_norm_is_that_of_the_whole_batch():
    settings = (*MLP, SGD, "model.batch_norm=true", "training.engine=eager", "training.dtype=float64")
    whole = GpuRun(*settings, "training.reduction=any")  # one rank's slices in one product: the whole batch
    slices = GpuRun(*settings, "training.reduction=fixed", "distributed.sync_batch_norm=true")
    assert slices.steps() == pytest.approx(whole.steps(), rel=1e-9)
    torch.testing.assert_close(slices.weights(), whole.weights(), rtol=1e-9, atol=1e-12)
