"""Description of a model's inputs and targets: names, units and ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from mpitrain.errors import one_line

_LONGEST_TEXT, _MOST_CHARACTERS = 1000, 4 * 2**20


@dataclass(frozen=True)
class ModelDescription:
    """Names, units and ranges of a model's F inputs and O targets, in the model's order; empty if unknown.

    Attributes
    ----------
    input_names, target_names : tuple of str, length F and O
    input_units, target_units : tuple of str, length F and O
        Physical units; "" if unknown.
    input_ranges : tuple of str, length F
        Smallest and largest training value of each input, as "low high".
    read_units : tuple of str
        Variables from which derived inputs and targets are computed, with their units, as "name=units".
    """

    input_names: tuple[str, ...] = ()
    target_names: tuple[str, ...] = ()
    input_units: tuple[str, ...] = ()
    target_units: tuple[str, ...] = ()
    input_ranges: tuple[str, ...] = ()
    read_units: tuple[str, ...] = ()

    @property
    def units(self) -> dict[str, str]:
        """Units of inputs, targets and the variables from which these are computed, by name; "" if unknown."""
        named = zip((*self.input_names, *self.target_names), (*self.input_units, *self.target_units), strict=False)
        return dict(named) | {text.rpartition("=")[0]: text.rpartition("=")[2] for text in self.read_units}

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Smallest and largest training value of each input, by name; empty if unknown."""
        pairs = ((name, text.split()) for name, text in zip(self.input_names, self.input_ranges, strict=False))
        return {name: (float(low), float(high)) for name, (low, high) in pairs}


TEXTS = tuple(field.name for field in fields(ModelDescription))
"""The names of the lists of texts in a model file."""


def parse_description(found: Mapping[str, object]) -> ModelDescription:
    """Return the description in a file's lists of `TEXTS`; a missing list is empty. The file need not be trusted.

    Control characters become escapes, because the texts are printed and become names in files. Raises ValueError if a
    list is invalid.
    """
    description = ModelDescription(**{name: _texts(name, found.get(name, [])) for name in TEXTS})
    try:
        _ = description.ranges
    except ValueError:
        raise ValueError("'input_ranges' is not a list of pairs of numbers") from None
    return description


def _texts(name: str, values: object) -> tuple[str, ...]:
    texts = values if isinstance(values, list) else [None]
    are_short = all(isinstance(text, str) and len(text) <= _LONGEST_TEXT for text in texts)
    # Limit the sum too: a small file may repeat one text a million times.
    if not are_short or sum(map(len, texts)) > _MOST_CHARACTERS:
        raise ValueError(f"'{name}' is not a list of short texts")
    return tuple(map(one_line, texts))
