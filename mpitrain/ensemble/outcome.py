"""The outcome of each member, in one small file in its folder that a resumed ensemble reads."""

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
    """Outcome of one member's training.

    Losses are those of its exported weights; settings are compared by `score`, None if there is none. `message` is the
    reason why a member has no network.
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
        """Whether the member has no network, and further training cannot give one."""
        return self.status in ("diverged", "failed")

    def to_json(self) -> str:
        """Return the text that `from_json` reads; floats are preserved bit for bit."""
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Outcome:
        """Return the outcome from the text of `to_json`. Raises ValueError for other text."""
        return _STORED.validate_json(text, strict=True)


_STORED = TypeAdapter(Outcome)
MOST_LONE_FAILURES = 2


class LoneFailures:
    """Count of the launches that ended because a member failed on some ranks of its group while others waited.

    Kept in the member's folder, one file per launch: after `MOST_LONE_FAILURES` a resumed ensemble leaves the
    member out.
    """

    def __init__(self, folder: Path) -> None:
        """Count the files of earlier launches."""
        self._folder = folder
        self._number = next(number for number in itertools.count() if not self._path(number).exists())

    def _path(self, number: int) -> Path:
        return self._folder / f"failed_on_some_ranks-{number + 1}.txt"

    def note(self, message: str) -> None:
        """Write the file of this launch, on any rank that failed; if that is impossible, the failure is not counted."""
        with contextlib.suppress(OSError):
            self._path(self._number).write_text(f"{message}\n")

    def outcome_of(self, number: int) -> Outcome | None:
        """Return a failed outcome for member `number` if it ended `MOST_LONE_FAILURES` launches, otherwise None."""
        if self._number < MOST_LONE_FAILURES:
            return None
        message = self._path(self._number - 1).read_text(errors="replace").strip()
        return Outcome(number, "failed", message=f"{message} (on some of its ranks, {self._number} times)")


Known = dict[int, Outcome]
Results = Mapping[int, Outcome]
"""Outcomes of members, by their numbers."""


@dataclass(frozen=True)
class Ended:
    """Outcomes of the members that have ended; `signal_name` is the signal that stopped the training, if any."""

    results: Results
    signal_name: str | None


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Write `member.json` completely or not at all. Raises OutputError."""
    with writing(folder / OUTCOME, "free space, then --resume"):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / OUTCOME, f"{outcome.to_json()}\n".encode())


def read_outcome(folder: Path) -> Outcome | None:
    """Return the outcome of the member in `folder`; None if it has not ended or the file is damaged."""
    try:
        return Outcome.from_json(read_regular_file(folder / OUTCOME))
    except (OSError, ValueError, TypeError):
        return None
