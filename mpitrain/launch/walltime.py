"""Walltimes: `HH:MM:SS`, `D-HH:MM:SS` or whole minutes. `MM:SS` is left out: half of its users mean hours."""

from __future__ import annotations

import re

ALLOWED = "HH:MM:SS, D-HH:MM:SS or whole minutes"
_CLOCK = re.compile(r"(?:([0-9]{1,3})-)?([0-9]{1,4}):([0-5][0-9]):([0-5][0-9])")
_MINUTES = re.compile(r"[1-9][0-9]{0,6}")


def walltime_seconds(text: str) -> int:
    """Return the walltime in seconds. Raises ValueError with the allowed forms."""
    if _MINUTES.fullmatch(text):
        return 60 * int(text)
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise ValueError(f"allowed is {ALLOWED}")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    if match[1] is not None and hours > 23:
        raise ValueError(f"allowed is {ALLOWED}; after days, hours go to 23")
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if total == 0:
        raise ValueError(f"allowed is {ALLOWED}, more than 0")
    return total


def clock_text(seconds: int) -> str:
    """Write seconds as HH:MM:SS, hours beyond 23 too: the form that every scheduler takes."""
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
