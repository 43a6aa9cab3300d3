"""What became of each member: one small file in its folder, which a resumed ensemble believes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mpitrain.errors import OutputError

OUTCOME = "member.json"
Status = Literal["done", "given up", "diverged", "failed"]


@dataclass(frozen=True)
class Outcome:
    """How one member fared up to one rung of a search, the last one where there is no search.

    Losses are those of its exported weights; settings are compared by `score`, None where there is none. `given up`
    after `epochs`: it waits to be promoted. `message` says why a member has no network.
    """

    number: int
    rung: int
    status: Status
    epochs: int = 0
    score: float | None = None
    train_loss: float | None = None
    validation_loss: float | None = None
    best_epoch: int | None = None
    weights_sha256: str | None = None
    training_s: float = 0.0
    message: str = ""

    @property
    def is_failure(self) -> bool:
        """Whether no further training can make a network of it."""
        return self.status in ("diverged", "failed")

    def to_json(self) -> str:
        """Return the text that `from_json` reads; floats survive bit for bit."""
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        """Return the outcome that `to_json` gave. Raises ValueError or TypeError for other text."""
        return cls(**json.loads(text))


Known = dict[tuple[int, int], Outcome]
Results = Mapping[tuple[int, int], Outcome]
"""What became of members, by (member's number, rung)."""


@dataclass(frozen=True)
class Ended:
    """How the training of all members ended; `signal_name` says what stopped it."""

    results: Results
    signal_name: str | None
    num_groups: int


def write_outcomes(folder: Path, outcomes: Mapping[int, Outcome]) -> None:
    """Write `member.json`, a line for each rung, whole or not at all. Raises OutputError."""
    partial = folder / f".{OUTCOME}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial.write_text("".join(f"{outcomes[rung].to_json()}\n" for rung in sorted(outcomes)))
        os.replace(partial, folder / OUTCOME)
    except OSError as error:
        where = folder / OUTCOME
        raise OutputError(f"{where}: cannot be written ({error.strerror}); free space, then --resume") from error


def read_outcomes(folder: Path) -> dict[int, Outcome]:
    """Return what became of the member in `folder`, by rung; nothing where it has not ended, or the file is damaged."""
    try:
        found = [Outcome.from_json(line) for line in (folder / OUTCOME).read_text().splitlines()]
    except (OSError, ValueError, TypeError):
        return {}
    return {outcome.rung: outcome for outcome in found}
