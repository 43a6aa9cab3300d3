"""Which run of a tracker a run folder belongs to, so that a resumed run goes on with it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from mpitrain.durable_files import write_durably
from mpitrain.json_text import read_json


@dataclass(frozen=True)
class KnownRun:
    """A tracker's own name of a run, kept in a file; `where` is the server or project that it is good for."""

    path: Path
    where: str

    def read(self) -> str | None:
        """Return the name; None where there is none yet, it cannot be read, or it is of another place."""
        try:
            kept = read_json(self.path)
            return str(kept["run"]) if kept["where"] == self.where else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, run: str) -> None:
        """Keep the name for those who resume the run."""
        write_durably(self.path, json.dumps({"where": self.where, "run": run}).encode())
