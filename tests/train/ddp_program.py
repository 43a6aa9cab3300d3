"""Run by test_train_ddp.py under mpirun: `python ddp_program.py RESULTS`.

Trains a few steps with DistributedDataParallel under many settings, over our mpi backend and over gloo, and writes what
was seen on each rank to RESULTS/facts.json: {backend: {check: [rank 0's, rank 1's]}}.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from networks_of_users import Branching  # noqa: F401  (named by a setting)
from played_runs import COMMON, MLP, RATE, one_step, points

from mpitrain.comm.mpi.process_group import MpiProcessGroup
from mpitrain.comm.start import run_on_all_ranks
from mpitrain.comm.tensors import open_tensors
from mpitrain.config import load_run_config
from mpitrain.data.dataset.exchange import take_share
from mpitrain.models.batch_norm import batch_norm_layers
from mpitrain.runs.prepare import prepare_on_samples
from mpitrain.train.checkpoint.format import weights_sha256
from mpitrain.train.state import named_weights

EXACT = (*MLP, "training.dtype=float64", "training.optimizer.type=sgd")
BATCH_NORM = (*EXACT, "model.batch_norm=true")
SYNC = (*BATCH_NORM, "distributed.sync_batch_norm=true")
BRANCHING = ("model.name=networks_of_users:Branching", "training.dtype=float64", "training.optimizer.type=sgd")
FIND_UNUSED = "distributed.find_unused_parameters=true"


class Run:
    """A few steps of one engine on this session's ranks."""

    def __init__(self, ranks, *settings):
        config = load_run_config(
            None, [*COMMON, "data.validation_split=0.1", "training.reduction=any", *settings]
        ).config
        self.ranks, samples = ranks, take_share(points(180), ranks)
        self.parts = prepare_on_samples(config, samples, ranks)
        self.model, self.engine = self.parts.model, self.parts.engine
        self.gradients, self.losses, self.calls = [], [], []
        self.engine.start_epoch(0)

    def steps(self, count=3):
        for _ in range(count):
            SENT.clear()
            self.losses.append(one_step(self.engine, len(self.losses), RATE).loss)
            self.calls.append(list(SENT))
            self.gradients.append(torch.cat([p.grad.detach().reshape(-1).clone() for p in self.model.parameters()]))
        return self

    def sha256(self):
        return weights_sha256(named_weights(self.model))


SENT: list[tuple[str, int]] = []
_ALLREDUCE = MpiProcessGroup.allreduce


def _recorded(self, tensors, opts=None):
    SENT.extend((str(tensor.dtype), tensor.numel()) for tensor in tensors)
    return _ALLREDUCE(self, tensors, opts)


def largest_difference(one, other):
    """Between two runs' gradients, relative to the largest entry, over all steps."""
    pairs = zip(one.gradients, other.gradients, strict=True)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def ddp(ranks, *settings):
    return Run(ranks, "training.engine=ddp", *settings)


def eager(ranks, *settings):
    return Run(ranks, "training.engine=eager", *settings)


def against_eager(ranks, *settings, options=()):
    """The largest difference of gradients and of losses, and the weights' hash."""
    one, other = ddp(ranks, *settings, *options).steps(5), eager(ranks, *settings).steps(5)
    mean, expected = (
        torch.cat([layer.running_mean for layer in batch_norm_layers(run.model)] or [torch.zeros(1)])
        for run in (one, other)
    )
    losses = max(abs(a / b - 1) for a, b in zip(one.losses, other.losses, strict=True))
    one.engine.validation_loss()
    return {
        "gradient": largest_difference(one, other),
        "loss": losses,
        "running mean": float((mean - expected).abs().max()),
        "sha256": one.sha256(),
    }


def bucket_views(ranks):
    def storages(is_view):
        run = ddp(ranks, *EXACT, f"distributed.gradient_as_bucket_view={is_view}").steps()
        return len({parameter.grad.untyped_storage().data_ptr() for parameter in run.model.parameters()})

    return [storages("false"), storages("true")]


def bucket_calls(ranks):
    return [
        [len(calls) for calls in ddp(ranks, *EXACT, f"distributed.bucket_cap_mb={size}").steps().calls]
        for size in ("25", "0.0003")
    ]


def accumulated_calls(ranks):
    return [
        [len(calls) for calls in ddp(ranks, *EXACT, f"training.gradient_accumulation_steps={count}").steps().calls]
        for count in (1, 4)
    ]


def half_precision(ranks):
    plain = ddp(ranks, *MLP).steps()
    half = ddp(ranks, *MLP, "distributed.fp16_allreduce=true").steps()
    return {
        "sent": [sorted({kind for calls in run.calls for kind, _ in calls}) for run in (plain, half)],
        "gradient": largest_difference(half, plain),
    }


def static_graph(ranks):
    engine = ddp(ranks, *EXACT, "distributed.static_graph=true").engine
    return [bool(engine._network.static_graph), bool(ddp(ranks, *EXACT).engine._network.static_graph)]


def buffers(ranks, *settings):
    """What the running mean is, at the beginning of each forward pass and of the validation, and at the end."""
    run = ddp(ranks, *BATCH_NORM, *settings)
    layer, seen = batch_norm_layers(run.model)[0], []
    layer.register_forward_pre_hook(lambda *_: seen.append(layer.running_mean.tolist()))
    run.steps()
    loss = run.engine.validation_loss()
    return {"steps": seen[:3], "validation": seen[3], "num_calls": len(seen), "loss": loss}


def unused_parameters(ranks):
    def complaint(*options):
        run = ddp(ranks, *BRANCHING, *options)
        try:
            run.steps(4)
        except Exception as error:
            return [type(error).__name__, str(error), len(run.losses)]
        return None

    return [complaint(), complaint("distributed.gradient_as_bucket_view=true")]


def random_numbers(ranks):
    """Dropout under DistributedDataParallel, and synchronised moments: the same weights on both ranks, twice."""
    settings = (*MLP, "model.dropout=0.3", "model.batch_norm=true", "distributed.sync_batch_norm=true")
    return [ddp(ranks, *settings, seed).steps().sha256() for seed in ("seed=0", "seed=0", "seed=1")]


def narrow(ranks):
    amp = (*MLP, "training.use_amp=true")
    plain, half = ddp(ranks, *MLP).steps(1), ddp(ranks, *amp).steps(1)
    return {"gradient": largest_difference(half, plain), "dtype": str(next(half.model.parameters()).dtype)}


CHECKS = {
    "plain": lambda ranks: against_eager(ranks, *EXACT),
    "clipped": lambda ranks: against_eager(ranks, *EXACT, "training.gradient_clip_norm=0.01"),
    "accumulated": lambda ranks: against_eager(ranks, *EXACT, "training.gradient_accumulation_steps=4"),
    "static graph": lambda ranks: against_eager(ranks, *EXACT, options=("distributed.static_graph=true",)),
    "bucket view": lambda ranks: against_eager(
        ranks, *EXACT, options=("distributed.gradient_as_bucket_view=true", "distributed.bucket_cap_mb=0.0003")
    ),
    "all at once": lambda ranks: against_eager(
        ranks, *SYNC, "training.gradient_accumulation_steps=2",
        options=("distributed.static_graph=true", "distributed.gradient_as_bucket_view=true"),
    ),
    "sync batch norm": lambda ranks: against_eager(ranks, *SYNC),
    "sync batch norm, own buffers": lambda ranks: against_eager(
        ranks, *SYNC, options=("distributed.broadcast_buffers=false",)
    ),
    "batch norm": lambda ranks: against_eager(ranks, *BATCH_NORM),
    "sync batch norm, checkpointed": lambda ranks: against_eager(
        ranks, *SYNC, "training.gradient_checkpointing=true"
    ),
    "unused parameters, found": lambda ranks: against_eager(ranks, *BRANCHING, options=(FIND_UNUSED,)),
    "unused parameters": unused_parameters,
    "bucket views": bucket_views,
    "bucket calls": bucket_calls,
    "accumulated calls": accumulated_calls,
    "half precision": half_precision,
    "static graph is set": static_graph,
    "buffers": lambda ranks: buffers(ranks, "distributed.broadcast_buffers=true"),
    "own buffers": lambda ranks: buffers(ranks, "distributed.broadcast_buffers=false"),
    "random numbers": random_numbers,
    "narrow": narrow,
}  # fmt: skip


def check_all(ranks, results):
    MpiProcessGroup.allreduce = _recorded
    facts = {}
    for backend in ("mpi", "gloo"):
        config = load_run_config(None, ["training.engine=ddp", f"compute.backend={backend}"]).config
        with open_tensors(ranks, config.semantics, config.compute, config.training, config.distributed.timeout_s):
            facts[backend] = {}
            for name, check in CHECKS.items():
                started_s = time.monotonic()
                facts[backend][name] = ranks.gather_object(check(ranks))
                print(f"{backend} {name}: {time.monotonic() - started_s:.2f} s", file=sys.stderr, flush=True)
    if ranks.is_root:
        (results / "facts.json").write_text(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(run_on_all_ranks(lambda ranks: check_all(ranks, Path(sys.argv[1]))))
