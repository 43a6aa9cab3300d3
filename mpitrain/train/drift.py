"""Detection of ranks whose weights or optimiser state have drifted apart, and the error message for it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from mpitrain.comm import Array, Ranks, mark_agreed
from mpitrain.errors import TrainingError
from mpitrain.models import DenseModel
from mpitrain.models.files.named_tensors import tensor_sha256
from mpitrain.train.engines.contract import StepEngine
from mpitrain.train.optimizers.state import optimizer_tensors, trained_names
from mpitrain.train.state import NORMALIZATION_BUFFERS

# In long epochs the comparison takes a collective of its own; it is rare enough for its cost not to matter.
STEPS_BETWEEN_MESSAGES = 1024


class DriftWatch:
    """Ends a run whose ranks no longer hold the same weights and optimiser state, before a checkpoint is saved.

    Weights are compared at the end of each epoch, together with the reduction of its loss, and every
    `STEPS_BETWEEN_MESSAGES` steps within long epochs. Before each checkpoint everything that it will hold is compared.
    Every method but `begin` is collective, and raises TrainingError on all ranks together.
    """

    def __init__(self, ranks: Ranks, model: Any, engine: StepEngine) -> None:
        self._ranks, self._model, self._engine = ranks, model, engine
        self._is_on = ranks.world_size > 1
        # The last steps after which the weights, and the whole state, were found to be the same on all ranks.
        self._same_weights, self._same_state = 0, 0
        self._own_buffers = _buffers_of_each_rank(model, engine) if self._is_on else frozenset()

    def begin(self, step: int) -> None:
        """Start from a checkpoint of `step`, the same on all ranks. Not collective."""
        self._same_weights = self._same_state = step

    def after_steps(self, step: int) -> None:
        """Compare the weights every `STEPS_BETWEEN_MESSAGES` steps within a long epoch."""
        if not self._is_on or (not self._engine.has_drifted and step - self._same_weights < STEPS_BETWEEN_MESSAGES):
            return
        if len(set(self._ranks.gather_object(self._engine.weights_digest.value))) > 1:
            self._fail(self._state(), self._same_weights, step)
        self._same_weights = step

    def after_epoch(self, step: int) -> None:
        """Raise TrainingError if the comparison at the end of the epoch found a difference."""
        if self._is_on and self._engine.has_drifted:
            self._fail(self._state(), self._same_weights, step)
        self._same_weights = step

    def before_saving(self, tensors: Mapping[str, Array], step: int) -> None:
        """Compare `tensors`, which a checkpoint will hold."""
        if not self._is_on:
            return
        compared = {name: tensor for name, tensor in tensors.items() if self._is_shared(name)}
        if self._differs(compared):
            self._fail(compared, self._same_state, step)
        self._same_weights = self._same_state = step

    def on_failed_loss(self, step: int) -> None:
        """Raise TrainingError if a loss is not finite and the ranks have drifted apart, which may be its cause."""
        if self._is_on and self._differs(self._state()):
            self._fail(self._state(), self._same_weights, step)

    def _state(self) -> dict[str, Array]:
        tensors = {f"model.{name}": value for name, value in self._model.state_dict().items()}
        tensors |= optimizer_tensors(self._engine.optimizer, trained_names(self._model))
        tensors |= {} if self._engine.average is None else self._engine.average.tensors()
        return {name: tensor for name, tensor in tensors.items() if self._is_shared(name)}

    def _is_shared(self, name: str) -> bool:
        kind, _, rest = name.partition(".")
        # An engine's own state was gathered by a collective for the checkpoint, so it is the same on all ranks.
        return kind != "engine" and rest not in self._own_buffers

    def _differs(self, tensors: Mapping[str, Array]) -> bool:
        mine = (self._engine.weights_digest.value, _hash_of(_hashes_of(tensors)))
        return len(set(self._ranks.gather_object(mine))) > 1

    def _fail(self, tensors: Mapping[str, Array], same_step: int, step: int) -> NoReturn:
        ranks, hashes = self._ranks, _hashes_of(tensors)
        state = RankState(ranks.rank, ranks.host, (self._engine.weights_digest.value, _hash_of(hashes)), hashes)
        steps = f"in steps {same_step + 1} to {step}" if step > same_step else f"after step {step}"
        raise mark_agreed(TrainingError(describe_drift(ranks.gather_object(state), steps)))


@dataclass(frozen=True)
class RankState:
    """The state of one rank: `digest`, of its weights in all steps and of all its tensors; a hash of each tensor."""

    rank: int
    host: str
    digest: tuple[int, str]
    hashes: Mapping[str, str]

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"


def describe_drift(states: Sequence[RankState], steps: str) -> str:
    """Return the error message: which ranks differ from the majority, and in which tensors."""
    (digest, count), *_ = Counter(state.digest for state in states).most_common()
    usual = next(state for state in states if state.digest == digest)
    odd = [state for state in states if state.digest != digest]
    if 2 * count <= len(states):  # two ranks, or no majority
        odd = [state for state in states if state is not usual]
        number = "the two" if len(states) == 2 else f"these {len(states)}"
        subject = f"{usual} and {_listed(odd)} have drifted apart, and one of {number} is wrong"
    else:
        have = "have" if len(odd) > 1 else "has"
        subject = f"{_listed(odd)} {have} drifted apart from the other {count} ranks"
    return (
        f"{subject}: {_difference(usual, odd)}, {steps}; a node's memory or processor may be faulty, or nodes of "
        "different kinds compute differently: continue on other nodes from the last checkpoint with --resume"
    )


def _difference(usual: RankState, odd: Sequence[RankState]) -> str:
    names = [name for name, known in usual.hashes.items() if any(state.hashes.get(name) != known for state in odd)]
    if not names:
        return "the weights differed for a time only"
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more} differ{'' if more else 's'}"


def _listed(states: Sequence[RankState]) -> str:
    return ", ".join(map(str, states))


def _hashes_of(tensors: Mapping[str, Array]) -> dict[str, str]:
    return {name: tensor_sha256(tensor) for name, tensor in tensors.items()}


def _hash_of(hashes: Mapping[str, str]) -> str:
    return hashlib.sha256("\n".join(hashes.values()).encode()).hexdigest()


def _buffers_of_each_rank(model: Any, engine: StepEngine) -> frozenset[str]:
    """Return the names of buffers that the engine does not keep the same on all ranks."""
    if isinstance(model, DenseModel):
        return frozenset()  # the compiled step keeps its running statistics the same
    from mpitrain.models import batch_norm_layers

    layers: list[Any] = list(batch_norm_layers(model)) if engine.shares_running_statistics else []
    shared = {id(buffer) for layer in layers for buffer in layer.buffers()}
    return frozenset(
        name for name, buffer in model.named_buffers() if name not in NORMALIZATION_BUFFERS and id(buffer) not in shared
    )
