"""What the doctor is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

END_LIMIT_S = 20.0


@dataclass(frozen=True)
class DoctorRequest:
    """What the command line asks for; `timeout_s` limits each step between the ranks."""

    config_path: Path | None = None
    overrides: tuple[str, ...] = ()
    as_json: bool = False
    timeout_s: float = 60.0
    static_only: bool = False

    @property
    def static_limit_s(self) -> float:
        """Time limit of all static checks together, for which the other ranks wait."""
        return 2 * self.timeout_s + 30
