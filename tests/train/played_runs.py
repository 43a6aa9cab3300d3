"""Whole trainings on ranks played by threads: the parts that the command builds, on samples in memory.

The ranks take turns, and each has torch's random state for itself, as processes have: no number that one rank draws can
depend on what another does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from played_ranks import PlayedCommunicator, on_played_ranks, played_ranks_of

from mpitrain.config import load_run_config
from mpitrain.data.dataset.batches import Microbatch
from mpitrain.data.dataset.exchange import take_share
from mpitrain.data.samples import Samples
from mpitrain.runs.prepare import prepare_on_samples
from mpitrain.train.callbacks import Callback
from mpitrain.train.checkpoint.format import weights_sha256
from mpitrain.train.checkpoint.store import Checkpoint
from mpitrain.train.choose_engine import Kernels, choose_compiled, choose_torch_engine
from mpitrain.train.engine_choice import EngineChoice
from mpitrain.train.engines.contract import StepEngine
from mpitrain.train.needs import EngineRequest
from mpitrain.train.state import copied, named_weights
from mpitrain.train.stop_request import StopRequest
from mpitrain.train.trainer import Trainer

Result = TypeVar("Result")
RATE = 0.05
# 32 are 4 microbatches of 8 rows.
COMMON = ("training.global_batch_size=32", "data.validation_split=0", "training.epochs=2")
MLP = ("model.name=mlp", "model.hidden_layers=2", "model.hidden_size=9", "model.hidden_activation=tanh")


def points(num_samples: int = 116, num_inputs: int = 4, num_targets: int = 2) -> Samples:
    """Points with something to learn; 116 leave 5 rows of each microbatch for the last batch of 32."""
    generator = np.random.default_rng(11)
    inputs = generator.normal(3, 2, size=(num_samples, num_inputs)).astype(np.float32)
    weights = generator.normal(size=(num_inputs, num_targets))
    signal = np.sin(inputs @ weights) + generator.normal(scale=0.1, size=(num_samples, num_targets))
    targets = 0.5 + signal / 4  # between 0 and 1, where a sigmoid can follow
    names = tuple(f"input_{number}" for number in range(num_inputs))
    targets_names = tuple(f"target_{number}" for number in range(num_targets))
    return Samples(inputs, targets.astype(np.float32), np.arange(num_samples), names, targets_names)


def fields(num_samples: int = 20, num_rows: int = 6, num_columns: int = 8) -> Samples:
    """Fields of 2 inputs and 1 target with a land mask."""
    generator = np.random.default_rng(12)
    inputs = generator.normal(size=(num_samples, 2, num_rows, num_columns)).astype(np.float32)
    targets = (inputs[:, :1] * np.roll(inputs[:, 1:], 1, axis=3)).astype(np.float32)
    is_ocean = generator.random((num_rows, num_columns)) > 0.3
    weights = np.broadcast_to(is_ocean, targets.shape).astype(np.float32)
    return Samples(inputs, targets, np.arange(num_samples), ("a", "b"), ("c",), weights)


class OneStep(NamedTuple):
    """What `one_step` gives back."""

    loss: float
    stop_requested: bool


def one_step(engine: StepEngine, step: int, rate: float = RATE, stop_requested: bool = False) -> OneStep:
    """Train on one batch of the epoch that has begun; return its loss, and whether any rank asks to stop."""
    taken = engine.take_steps(step, 1, rate, stop_requested)
    (loss,) = taken.losses
    return OneStep(loss, taken.stop_requested)


class Run(Callback):
    """One rank's parts for `settings`, as the command builds them, and a trainer whose checkpoints stay in memory."""

    def __init__(
        self, communicator: PlayedCommunicator, settings: Sequence[str] = (), samples: Samples | None = None
    ) -> None:
        self.config = load_run_config(None, [*COMMON, *settings]).config
        torch.set_num_threads(1)  # as the command does where it promises bits
        self.ranks = played_ranks_of(communicator, self.config.training.reduction or "fixed")
        own = take_share(points() if samples is None else samples, self.ranks)
        self.parts: Any = prepare_on_samples(self.config, own, self.ranks)
        self.model, self.engine = self.parts.model, self.parts.engine
        self.saved: list[tuple[str, dict[str, torch.Tensor], dict[str, Any]]] = []
        self.rates: list[float] = []
        self.trainer = Trainer(self.config.training, self.ranks, self.model, self.engine, [self], StopRequest())

    def on_epoch(self, state: Any, learning_rate: float, wall_time_s: float) -> None:
        self.rates.append(learning_rate)

    def on_checkpoint(self, tensors: Any, state: Any, kind: str) -> None:
        self.saved.append((kind, {name: copied(tensor) for name, tensor in tensors.items()}, state.to_manifest()))

    @property
    def checkpoint(self) -> Checkpoint:
        """The last one saved."""
        _, tensors, state = next(saved for saved in reversed(self.saved) if saved[0] == "step")
        return Checkpoint(None, tensors, state, self.parts.settings)  # type: ignore[arg-type]

    def steps(self, num_steps: int | None = None, epoch: int = 0) -> list[float]:
        """Train on the first steps of an epoch; return their losses."""
        self.engine.start_epoch(epoch)
        count = self.engine.steps_per_epoch if num_steps is None else num_steps
        return [one_step(self.engine, step, RATE).loss for step in range(count)]

    def fit(self) -> Run:
        self.trainer.fit()
        return self

    def weights(self) -> torch.Tensor:
        """All that training changes, running statistics too, as one float64 vector."""
        return torch.cat([torch.as_tensor(value).double().reshape(-1) for value in named_weights(self.model).values()])

    def parameters(self) -> torch.Tensor:
        """The parameters as one vector, a copy."""
        return torch.cat([torch.as_tensor(copied(one)).reshape(-1) for _, one in self.model.named_parameters()])

    def gradient(self) -> torch.Tensor:
        return torch.cat([parameter.grad.detach().double().reshape(-1) for parameter in self.model.parameters()])

    def sha256(self) -> str:
        return weights_sha256(named_weights(self.model))


def in_turns(num_ranks: int, body: Callable[[PlayedCommunicator], Result]) -> list[Result]:
    """`on_played_ranks` with one rank running at a time, and the caller's random state as it was."""
    turn, before = threading.Lock(), torch.get_rng_state()

    def alone(communicator: PlayedCommunicator) -> Result:
        share = communicator._share

        def wait(value: Any) -> list[Any]:
            state = torch.get_rng_state()
            turn.release()
            try:
                return share(value)
            finally:
                turn.acquire()
                torch.set_rng_state(state)

        communicator._share = wait  # type: ignore[method-assign]
        with turn:
            torch.manual_seed(communicator.rank)
            return body(communicator)

    try:
        return on_played_ranks(num_ranks, alone)
    finally:
        torch.set_rng_state(before)


def runs(num_ranks: int, *settings: str, samples: Samples | None = None, what: Callable[[Run], Result]) -> list[Result]:
    """Return `what` of each rank's run."""
    return in_turns(num_ranks, lambda communicator: what(Run(communicator, settings, samples)))


def record_sent(communicator: PlayedCommunicator) -> list[torch.Tensor]:
    """Return a list that grows by each tensor that the rank sends from now on."""
    sent: list[torch.Tensor] = []
    share = communicator._share

    def note(value: Any) -> list[Any]:
        if isinstance(value, torch.Tensor | np.ndarray):
            sent.append(torch.as_tensor(value))
        return share(value)

    communicator._share = note  # type: ignore[method-assign]
    return sent


def run_alone(*settings: str, samples: Samples | None = None) -> Run:
    """One rank's parts, not yet trained."""
    return Run(PlayedCommunicator(0, [None], threading.Barrier(1)), settings, samples)


def chosen_alone(request: EngineRequest, model: Any, example: Microbatch) -> EngineChoice:
    """Return the engine that one rank chooses for one of torch's modules, whose only microbatch is `example`."""

    def choose(communicator: PlayedCommunicator) -> EngineChoice:
        ranks, kernels = played_ranks_of(communicator), Kernels()
        found = choose_compiled(request, ranks, model, len(example.inputs), kernels)
        return (
            found
            if isinstance(found, EngineChoice)
            else choose_torch_engine(request, ranks, model, example, (), found, kernels)
        )

    return on_played_ranks(1, choose)[0]


def fitted_hashes(num_ranks: int, *settings: str, samples: Samples | None = None) -> list[str]:
    """The hash of each rank's weights after the whole training."""
    return runs(num_ranks, *settings, samples=samples, what=lambda run: run.fit().sha256())


def with_values(samples: Samples, **columns: Any) -> Samples:
    return replace(samples, **columns)
