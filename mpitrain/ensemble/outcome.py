"""What became of each member: one small file in its folder, which a resumed ensemble believes."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from mpitrain.durable_files import write_whole
from mpitrain.errors import writing
from mpitrain.json_text import read_regular_file

OUTCOME, SKILL = "member.json", "skill.csv"
Status = Literal["done", "diverged", "failed"]


@dataclass(frozen=True)
class Outcome:
    """How one member fared.

    Losses are those of its exported weights; settings are compared by `score`, None where there is none. `message` says
    why a member has no network.
    """

    number: int
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
    def from_json(cls, text: str | bytes) -> Outcome:
        """Return the outcome that `to_json` gave. Raises ValueError for other text."""
        return _STORED.validate_json(text, strict=True)


_STORED = TypeAdapter(Outcome)
MOST_LONE_FAILURES = 2


class LoneFailures:
    """How often a member has failed on some ranks of its group while others waited, which ends all ranks of the world.

    Kept in its folder, one file a world: after `MOST_LONE_FAILURES` a resumed ensemble goes on without it.
    """

    def __init__(self, folder: Path) -> None:
        """Count what earlier worlds have left."""
        self._folder = folder
        self._number = next(number for number in itertools.count() if not self._path(number).exists())

    def _path(self, number: int) -> Path:
        return self._folder / f"failed_on_some_ranks-{number + 1}.txt"

    def note(self, message: str) -> None:
        """Leave one for this world, whichever ranks do. Where it cannot be written, the member is tried again."""
        with contextlib.suppress(OSError):
            self._path(self._number).write_text(f"{message}\n")

    def outcome_of(self, number: int) -> Outcome | None:
        """Return what became of member `number` if it has failed so too often; else None."""
        if self._number < MOST_LONE_FAILURES:
            return None
        message = self._path(self._number - 1).read_text(errors="replace").strip()
        return Outcome(number, "failed", message=f"{message} (on some of its ranks, {self._number} times)")


Known = dict[int, Outcome]
Results = Mapping[int, Outcome]
"""What became of members, by their numbers."""


@dataclass(frozen=True)
class Ended:
    """How the training of all members ended; `signal_name` says what stopped it."""

    results: Results
    signal_name: str | None


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Write `member.json`, whole or not at all. Raises OutputError."""
    with writing(folder / OUTCOME, "free space, then --resume"):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / OUTCOME, f"{outcome.to_json()}\n".encode())


def read_outcome(folder: Path) -> Outcome | None:
    """Return what became of the member in `folder`; None where it has not ended, or the file is damaged."""
    try:
        return Outcome.from_json(read_regular_file(folder / OUTCOME))
    except (OSError, ValueError, TypeError):
        return None
