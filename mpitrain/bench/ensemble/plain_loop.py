"""What users write for many networks without us: a loop over plain PyTorch, or joblib's processes around it.

`python -m mpitrain.bench.ensemble.plain_loop --members 4 --epochs 2 --samples 7145 --network 7-64-64-1 [--processes 2]`
prints the seconds of the trainings alone, without imports, as a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mpitrain.bench.step_cases import network_of
from mpitrain.bench.step_job import synthetic_samples

_BATCH, _LEARNING_RATE = 64, 1e-3
_ACTIVATIONS = {"none": nn.Identity, "sigmoid": nn.Sigmoid, "relu": nn.ReLU}


def train_one(seed: int, epochs: int, num_samples: int, name: str) -> float:
    """Train one network with DataLoader, autograd and torch.optim.Adam; return its last loss."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    samples, network = synthetic_samples(num_samples), network_of(name)
    layers: list[nn.Module] = []
    for size, following in zip(network.sizes[:-2], network.sizes[1:-1], strict=True):
        layers += [nn.Linear(size, following), _ACTIVATIONS[network.hidden_activation]()]
    model = nn.Sequential(*layers, nn.Linear(network.sizes[-2], network.sizes[-1]))
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


def main() -> None:
    """Train as the command line says, and print the seconds."""
    parser = argparse.ArgumentParser()
    for name in ("members", "epochs", "samples"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--processes", type=int)
    parser.add_argument("--network", required=True)
    options = parser.parse_args()
    work = (options.epochs, options.samples, options.network)
    if options.processes is None:
        started_s = time.perf_counter()
        for seed in range(options.members):
            train_one(seed, *work)
    else:
        from joblib import Parallel, delayed

        pool = Parallel(n_jobs=options.processes)
        pool(delayed(train_one)(seed, 0, 64, options.network) for seed in range(2 * options.processes))  # imports
        started_s = time.perf_counter()
        pool(delayed(train_one)(seed, *work) for seed in range(options.members))
    print(json.dumps({"seconds": time.perf_counter() - started_s}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
