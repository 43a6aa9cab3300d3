"""What an unquoted word means in our YAML: numbers as YAML 1.2 has them, and no guess where versions disagree.

PyYAML follows YAML 1.1: `3e-4` is text, `12:30:00` is 45000, `010` is 8. Here numbers are those of YAML 1.2's core
schema, and a number that the two versions read differently is refused. `on`, `off`, `yes` and `no` stay booleans,
since older files use them so; where text is expected they are refused later, with the advice to quote them.
Nothing is ever constructed from a tag.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

import yaml
from yaml import ScalarNode

from mpitrain.config.show import shorten

_STANDARD = "tag:yaml.org,2002:"
NULL = _STANDARD + "null"
BOOL = _STANDARD + "bool"
INT = _STANDARD + "int"
FLOAT = _STANDARD + "float"
TEXT = _STANDARD + "str"
MERGE = _STANDARD + "merge"
LIST = _STANDARD + "seq"
MAPPING = _STANDARD + "map"
AMBIGUOUS = "ambiguous number"

_BOOL_WORDS = re.compile(r"(?:true|True|TRUE|false|False|FALSE|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF)\Z")
_RESOLVERS = [
    (NULL, re.compile(r"(?:~|null|Null|NULL|)\Z")),
    (BOOL, _BOOL_WORDS),
    # Octal 010 and 0o10, hexadecimal, binary, and underscores.
    (AMBIGUOUS, re.compile(r"[-+]?(?:0[0-9_]+|0[xob][0-9a-fA-F_]+|[0-9][0-9_]*_[0-9_]*(?:\.[0-9_]*)?)\Z")),
    (INT, re.compile(r"[-+]?[0-9]+\Z")),
    (FLOAT, re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\Z")),
    (FLOAT, re.compile(r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z")),
    (MERGE, re.compile(r"<<\Z")),
]


class StrictLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the resolution described above."""

    # One list under `None`: tried for a word with any first character.
    yaml_implicit_resolvers: ClassVar[dict[Any, Any]] = {None: _RESOLVERS}  # type: ignore[misc]


def plain_value(node: ScalarNode) -> Any:
    """Return None, a bool, int, float or str. Raises ValueError, saying what to write instead."""
    text, shown = node.value, shorten(node.value)
    if node.tag == AMBIGUOUS:
        advice = f'write a plain decimal number, or "{shown}" in quotes for text'
        raise ValueError(f"{shown} is read differently by different YAML readers; {advice}")
    if node.tag not in _READERS:
        raise ValueError(f"the tag {shorten(node.tag)} is not read; remove it")
    try:
        return _READERS[node.tag](text)
    except ValueError:
        kind = node.tag.removeprefix(_STANDARD)
        raise ValueError(f"{shown} cannot be read as {kind}; write a plain value") from None


def _bool(text: str) -> bool:
    if not _BOOL_WORDS.match(text):
        raise ValueError(text)
    return text.lower() in ("true", "yes", "on")


def _float(text: str) -> float:
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


_READERS: dict[str, Callable[[str], Any]] = {
    NULL: lambda text: None,
    BOOL: _bool,
    INT: int,
    FLOAT: _float,
    TEXT: str,
    MERGE: str,
}
