"""Many networks without this package: a loop over plain PyTorch, joblib's processes around it, Ray Tune.

`python -m mpitrain.bench.ensemble.plain_loop --by joblib --processes 2 --members 4 --epochs 2 --samples 7145 --network
7-64-64-1` prints the seconds of the trainings as a line of JSON, without what happens once: imports, a pool's or a
cluster's start, and the first optimiser's, which takes torch a second.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from tempfile import TemporaryDirectory

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mpitrain.bench.baselines import model_of
from mpitrain.bench.step_cases import network_of
from mpitrain.bench.step_job import synthetic_samples

Work = tuple[int, int, str]
_BATCH, _LEARNING_RATE = 64, 1e-3
_WARM_UP = (1, 64)  # epochs and samples


def train_one(seed: int, epochs: int, num_samples: int, name: str) -> float:
    """Train one network with DataLoader, autograd and torch.optim.Adam; return its last loss."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    samples, model = synthetic_samples(num_samples), model_of(network_of(name))
    optimizer = torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE)
    data = TensorDataset(torch.from_numpy(samples.inputs), torch.from_numpy(samples.targets))
    loss = torch.zeros(())
    for _ in range(epochs):
        for inputs, targets in DataLoader(data, batch_size=_BATCH, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
    return float(loss.detach())


def train_in_a_loop(seeds: Sequence[int], work: Work, processes: int) -> float:
    """Train one after the other in this process; return the seconds."""
    del processes
    train_one(0, *_WARM_UP, work[2])
    started_s = time.perf_counter()
    for seed in seeds:
        train_one(seed, *work)
    return time.perf_counter() - started_s


def train_by_joblib(seeds: Sequence[int], work: Work, processes: int) -> float:
    """Train in joblib's processes; return the seconds."""
    from joblib import Parallel, delayed

    pool = Parallel(n_jobs=processes)
    pool(delayed(train_one)(seed, *_WARM_UP, work[2]) for seed in range(2 * processes))
    started_s = time.perf_counter()
    pool(delayed(train_one)(seed, *work) for seed in seeds)
    return time.perf_counter() - started_s


def train_by_ray_tune(seeds: Sequence[int], work: Work, processes: int) -> float:
    """Train as trials of Ray Tune, one a core; return the seconds, with each trial's own process, which it starts."""
    import ray
    from ray import tune

    with TemporaryDirectory() as folder:
        ray.init(num_cpus=processes, include_dashboard=False, log_to_driver=False)

        def trial(settings: dict[str, int]) -> None:
            tune.report({"loss": train_one(settings["seed"], *work)})

        def fit(seeds: Sequence[int]) -> None:
            settings = tune.RunConfig(storage_path=folder, verbose=0)
            tune.Tuner(trial, param_space={"seed": tune.grid_search(list(seeds))}, run_config=settings).fit()

        fit(range(processes))
        started_s = time.perf_counter()
        fit(seeds)
        seconds = time.perf_counter() - started_s
        ray.shutdown()
    return seconds


WAYS = {"loop": train_in_a_loop, "joblib": train_by_joblib, "ray": train_by_ray_tune}
"""By name: given seeds, (epochs, samples, network) and a number of processes, each returns seconds."""


def main() -> None:
    """Train as the command line says, and print the seconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--by", choices=list(WAYS), required=True)
    for name in ("members", "epochs", "samples", "processes"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--network", required=True)
    options = parser.parse_args()
    work = (options.epochs, options.samples, options.network)
    seconds = WAYS[options.by](range(options.members), work, options.processes)
    print(json.dumps({"seconds": seconds}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
