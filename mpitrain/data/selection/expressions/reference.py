"""References to a variable in names and expressions: "sst", "thetao[z=0]", "thetao[depth=0..200]", "sst[time-1]"."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mpitrain.errors import ConfigError

# A name, or var("any name"), before brackets; the brackets' content has no brackets of its own.
BRACKETED = re.compile(r'(?:\bvar\(\s*(?P<quote>["\'])(?P<quoted>[^"\']*)(?P=quote)\s*\)|\b(?P<name>[A-Za-z_]\w*))'
                       r"\s*\[(?P<inside>[^\[\]]*)\]")  # fmt: skip
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_LAG = re.compile(r"(time|row)\s*([-+])\s*(\d{1,6})$")
_NAMED = re.compile(r"([A-Za-z_]\w*)\s*=\s*(.+)$")
_VALUES = re.compile(rf"({_NUMBER})\s*\.\.\s*({_NUMBER})$")
_ONE = re.compile(rf"{_NUMBER}$")
_SLICE = re.compile(r"(\d*)\s*:\s*(\d*)$")
SPELLINGS = "[z=0], [z=:], [z=0:5], [depth=10.5], [depth=0..200], [:, 0], [time-1], [row-1]"


@dataclass(frozen=True)
class Index:
    """The selection along one dimension: `dimension` is its name, None for the next dimension in order.

    `first` and `last`: one number (both are the same), or a range of values, both included. `start` and `stop`: a range
    of positions, `stop` excluded; None stands for the end of the dimension.
    """

    dimension: str | None
    first: float | None = None
    last: float | None = None
    start: int | None = None
    stop: int | None = None

    @property
    def is_run(self) -> bool:
        """Whether the index may select more than one position."""
        return self.first is None or self.first != self.last


@dataclass(frozen=True)
class Reference:
    """A variable `name`, its `indices`, and its `lag`: the number of steps by which it is later (+) or earlier (-).

    A lag counts steps of time, or with `by_row` time levels in the order of the files.
    """

    name: str
    indices: tuple[Index, ...] = ()
    lag: int = 0
    by_row: bool = False

    @property
    def is_run(self) -> bool:
        """Whether the reference may select several levels."""
        return any(index.is_run for index in self.indices)


def parse_reference(text: str, key: str) -> Reference:
    """Return the reference in `text`, a part of the setting `key`: a plain name, or a name with brackets.

    Raises ConfigError if the brackets cannot be parsed.
    """
    found = BRACKETED.fullmatch(text.strip())
    if found is None:
        return Reference(text)
    indices, lag, by_row = [], 0, False
    for item in found["inside"].split(","):
        moved = _LAG.match(item.strip())
        if moved:
            if lag:
                raise ConfigError(f"{key}: '{text}': two lags; give one")
            lag, by_row = int(moved[2] + moved[3]), moved[1] == "row"
        elif item.strip() != "time":
            indices.append(_index(item.strip(), text, key))
    return Reference(found["quoted"] or found["name"], tuple(indices), lag, by_row)


def _index(item: str, text: str, key: str) -> Index:
    named = _NAMED.match(item)
    dimension, spec = (named[1], named[2].strip()) if named else (None, item)
    if _ONE.match(spec):
        return Index(dimension, float(spec), float(spec))
    if found := _VALUES.match(spec):
        return Index(dimension, float(found[1]), float(found[2]))
    if found := _SLICE.match(spec):
        start, stop = (int(one) if one else None for one in found.groups())
        return Index(dimension, start=start, stop=stop)
    raise ConfigError(f"{key}: '{text}': '{item}' is not a level or lag; allowed are {SPELLINGS}")
