"""Run by test_train_drift.py under mpirun: `python flip_program.py RESULTS.json FLIPS_AN_ENGINE SEED`.

Trains small networks with every engine, each time with one bit flipped on one rank, and writes what became of it.
"""

from __future__ import annotations

import json
import math
import random
import sys
from dataclasses import asdict
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from planted_faults.bit_flips import BitFlip, plant_bit_flip
from played_runs import COMMON, points, with_values

from mpitrain.comm.agreement import is_agreed
from mpitrain.comm.start import run_on_all_ranks
from mpitrain.comm.tensors import open_tensors
from mpitrain.config import load_run_config
from mpitrain.data.dataset.exchange import take_share
from mpitrain.errors import TrainingError
from mpitrain.runs.prepare import prepare_on_samples
from mpitrain.train.callbacks import Callback
from mpitrain.train.checkpoint.format import weights_sha256
from mpitrain.train.state import named_weights
from mpitrain.train.stop_request import StopRequest
from mpitrain.train.trainer import Trainer

NUM_STEPS = 8  # of a run: 2 epochs of 4, or 8 of 1
_STANDARD = (*COMMON, "training.save_interval=1", "data.validation_split=0.1", "model.hidden_size=5")
ENGINES = {
    "compiled": ("training.engine=compiled",),
    "compiled any": ("training.engine=compiled", "training.reduction=any", "training.dtype=float64"),
    "eager": ("training.engine=eager", "training.dtype=float64"),
    "eager mlp": ("training.engine=eager", "model.name=mlp", "model.hidden_layers=1", "model.batch_norm=true"),
    "ddp": ("training.engine=ddp", "training.reduction=any", "training.optimizer.type=sgd",
            "training.optimizer.momentum=0.9"),
    "reference": ("semantics=reference", "training.epochs=8", "training.save_interval=2"),
}  # fmt: skip


def settings_of(engine):
    first = ("model.hidden_size=5",) if engine == "reference" else _STANDARD
    return (*first, "training.optimizer.learning_rate=0.01", *ENGINES[engine])


def train(config, ranks, flip=None):
    """Train; return the hashes of all that was saved and of the weights at the end, and the error, if there was one."""
    num_targets = 1 if config.semantics == "reference" else 2
    samples = points(130, 7, num_targets)
    fractions = with_values(samples, targets=(samples.targets / 4 + 0.5).clip(0, 1))  # as IceNet's answers
    prepared = prepare_on_samples(config, take_share(fractions, ranks), ranks)
    if flip is not None:
        plant_bit_flip(flip, ranks.rank, prepared.engine)
    saved = {}

    class Save(Callback):
        def on_checkpoint(self, tensors, state, kind):
            saved[f"{kind}-{state.global_step}"] = weights_sha256(tensors)

    trainer = Trainer(config.training, ranks, prepared.model, prepared.engine, [Save()], StopRequest())
    error = None
    try:
        trainer.fit()
    except TrainingError as failure:
        error = str(failure) if is_agreed(failure) else "not agreed"
    prepared.engine.close()
    saved["end"] = weights_sha256(named_weights(prepared.model))
    return {
        "saved": saved,
        "error": error,
        "sizes": {name: math.prod(one.shape) for name, one in prepared.model.named_parameters()},
    }


def draw_flip(generator, config, ranks, sizes):
    """The same on all ranks."""
    bits = 64 if config.training.dtype == "float64" else 32
    state = ["momentum_buffer"] if config.training.optimizer.type == "sgd" else ["exp_avg", "exp_avg_sq"]
    parameter = generator.randrange(len(sizes))
    return BitFlip(
        generator.randrange(ranks.world_size), generator.randint(1, NUM_STEPS - 1), parameter,
        generator.choice(["weight", *state]), generator.randrange(sizes[parameter]), generator.randrange(bits),
    )  # fmt: skip


def body(ranks, results, num_flips, seed):
    facts = []
    for engine in ENGINES:
        config = load_run_config(None, settings_of(engine)).config
        generator = random.Random(f"{seed} {engine}")
        with open_tensors(ranks, config.semantics, config.compute, config.training, config.distributed.timeout_s):
            torch.set_num_threads(1)
            undisturbed = train(config, ranks)
            assert undisturbed["error"] is None, undisturbed["error"]
            for _ in range(num_flips):
                flip = draw_flip(generator, config, ranks, list(undisturbed["sizes"].values()))
                seen = ranks.gather_object(train(config, ranks, flip))
                facts.append({"engine": engine, "flip": asdict(flip), "names": list(undisturbed["sizes"]),
                              "expected": undisturbed["saved"], "ranks": seen})  # fmt: skip
    if ranks.is_root:
        Path(results).write_text(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(run_on_all_ranks(lambda ranks: body(ranks, sys.argv[1], int(sys.argv[2]), sys.argv[3])))
