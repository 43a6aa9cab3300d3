"""What the numbers of a model are: names, units and ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from mpitrain.errors import one_line

_LONGEST_TEXT, _MOST_CHARACTERS = 1000, 4 * 2**20


@dataclass(frozen=True)
class ModelDescription:
    """What the numbers are: names and units of the F inputs and O targets, in the model's order."""

    input_names: tuple[str, ...] = ()
    target_names: tuple[str, ...] = ()
    input_units: tuple[str, ...] = ()
    target_units: tuple[str, ...] = ()
    input_ranges: tuple[str, ...] = ()
    """Smallest and largest value of each input that was trained on, as "low high"."""
    read_units: tuple[str, ...] = ()
    """What derived inputs and targets are computed from, with its units, as "name=units"."""

    @property
    def units(self) -> dict[str, str]:
        """Units by the names of inputs, targets, and what these are computed from; "" where they are not known."""
        named = zip((*self.input_names, *self.target_names), (*self.input_units, *self.target_units), strict=False)
        return dict(named) | {text.rpartition("=")[0]: text.rpartition("=")[2] for text in self.read_units}

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """The smallest and the largest value of each input that was trained on, by its name; none where not known."""
        pairs = ((name, text.split()) for name, text in zip(self.input_names, self.input_ranges, strict=False))
        return {name: (float(low), float(high)) for name, (low, high) in pairs}


TEXTS = tuple(field.name for field in fields(ModelDescription))
"""The names of the lists of texts in a model's file."""


def parse_description(found: Mapping[str, object]) -> ModelDescription:
    """Return what a file's lists of `TEXTS` say, whoever wrote it; a list that is missing is empty.

    Control characters become escapes: the texts are printed, and become names in files. Raises ValueError.
    """
    description = ModelDescription(**{name: _texts(name, found.get(name, [])) for name in TEXTS})
    try:
        _ = description.ranges
    except ValueError:
        raise ValueError("'input_ranges' are no pairs of numbers") from None
    return description


def _texts(name: str, values: object) -> tuple[str, ...]:
    texts = values if isinstance(values, list) else [None]
    are_short = all(isinstance(text, str) and len(text) <= _LONGEST_TEXT for text in texts)
    # Their sum too: one text may stand in the list a million times.
    if not are_short or sum(map(len, texts)) > _MOST_CHARACTERS:
        raise ValueError(f"'{name}' are no names")
    return tuple(map(one_line, texts))
