"""Reading of YAML text as a flat list of settings with their line numbers, and writing of a configuration as YAML.

Numbers follow the core schema of YAML 1.2. PyYAML follows YAML 1.1, where `3e-4` is text, `12:30:00` is 45000 and
`010` is 8; a number that the two versions read differently raises ConfigError. `on`, `off`, `yes` and `no` are
booleans because older files use them as such; if text is expected, the message advises to put them in quotes.
Objects are never constructed from tags.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache, reduce
from itertools import islice
from pathlib import Path
from textwrap import indent
from typing import Any, ClassVar, NoReturn

import yaml
from pydantic import BaseModel
from yaml import MappingNode, Node, ScalarNode, SequenceNode

from mpitrain.config.older.synonyms import NAMED_SETTINGS
from mpitrain.errors import ConfigError, one_line

COMMAND_LINE = "command line"
LARGEST_FILE_BYTES = 1 << 20
LARGEST_NUMBER_OF_SETTINGS = 1000
LONGEST_VALUE_CHARACTERS = 60

KeyPath = tuple[str, ...]


@dataclass(frozen=True)
class Setting:
    """One key that is not a section, with its value and its location."""

    path: KeyPath
    """The parts of the current key."""
    value: Any
    node: Node
    """The value as YAML parsed it."""
    source: str
    """The name of the file, or `command line`."""
    spelled: KeyPath
    """The parts of the key as it was written."""
    lines: tuple[int, ...]
    """The line of each part."""

    @property
    def from_command_line(self) -> bool:
        """Whether the setting is an override."""
        return self.source == COMMAND_LINE

    @property
    def where(self) -> str:
        """Location of the key: `file:line`, or `command line`."""
        return self.source if self.from_command_line else f"{self.source}:{self.lines[-1]}"

    @property
    def key(self) -> str:
        """The dotted key as it was written."""
        return one_line(".".join(self.spelled))

    @property
    def order(self) -> tuple[bool, int]:
        """Sort key: settings of the file by line, then those of the command line."""
        return self.from_command_line, self.lines[-1]

    def section(self, levels_up: int) -> Setting:
        """Return the section `levels_up` levels above the key as a setting: an empty mapping at its own line."""
        num_parts = max(1, len(self.spelled) - levels_up)
        return replace(self, value={}, spelled=self.spelled[:num_parts], lines=self.lines[:num_parts])


def read_settings(path: Path) -> tuple[Setting, ...]:
    """Return the settings of a YAML file in the order of the file.

    Raises ConfigError if the file cannot be read, is not UTF-8 or not a YAML mapping, contains a key twice, or contains
    a number that YAML readers interpret differently.
    """
    name = one_line(str(path))
    return parse_settings(_read_text(path, name), name, lambda line: f"{name}:{line}")


def parse_settings(text: str, source: str, where: Callable[[int], str], above: KeyPath = ()) -> tuple[Setting, ...]:
    """Return the settings of YAML text, in order; if the text is the value of a key, `above` is that key.

    `where` returns the location for messages from a line number. Raises ConfigError like `read_settings`.
    """
    try:
        root = _compose(text, where)
        reader = _NodeReader(source, where)
        if not above and not isinstance(root, MappingNode):
            if root.tag == _NULL:
                return ()
            reader.refuse(root, f"the file contains {_kind_of(root)}; write sections of keys, such as 'training:'")
        return reader.settings(root, above) if above or root.value else ()
    except RecursionError:
        raise ConfigError(f"{where(1)}: nested too deeply; a configuration has three levels") from None


def render_yaml(config: BaseModel, left_out: Collection[str] = ()) -> str:
    """Return YAML with all values of the configuration except those of the dotted keys `left_out`.

    Parameters
    ----------
    config : pydantic.BaseModel
        A configuration, such as `RunConfig`.
    left_out : collection of str
        Dotted keys of the configuration.

    Returns
    -------
    str
        Loading it gives an equal configuration if the keys left out have their defaults.
    """
    tree = config.model_dump()
    for key in left_out:
        *sections, name = key.split(".")
        del reduce(lambda section, one: section[one], sections, tree)[name]
    return "".join(_render_key(key, json.dumps(value)) for key, value in tree.items())


def render_tree(tree: Mapping[str, Any], name: str) -> str:
    """Return YAML of nested plain values that reads back equal. Raises ConfigError for other values."""
    try:
        return yaml.dump(dict(tree), Dumper=_QuotingDumper, sort_keys=False, width=math.inf)
    except (RecursionError, yaml.YAMLError, TypeError, ValueError) as error:
        raise ConfigError(f"{name}: contains no settings; a configuration has three levels of names") from error


@lru_cache(maxsize=1024)
def _render_key(key: str, text: str) -> str:
    # Cached: many configurations differ in few keys only.
    value = json.loads(text)
    if isinstance(value, dict) and value:
        return f"{key}:\n" + "".join(indent(_render_key(name, json.dumps(one)), "  ") for name, one in value.items())
    return yaml.dump({key: value}, Dumper=_QuotingDumper, sort_keys=False, width=math.inf)


def quoted(text: str) -> str:
    """Return YAML that reads back as this text, for any text."""
    if text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    return '"' + one_line(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def show_value(value: object) -> str:
    """Return a value in YAML notation, shortened as by `shorten`; a list is cut off after 4 items."""
    return shorten(_show(value))


def shorten(text: str) -> str:
    """Return the text on one line, shortened to a readable length.

    Returns
    -------
    str
        At most 60 characters; a longer text ends in `...`. Unprintable characters are written as escapes.
    """
    text = one_line(text[: 2 * LONGEST_VALUE_CHARACTERS])
    return text if len(text) <= LONGEST_VALUE_CHARACTERS else text[: LONGEST_VALUE_CHARACTERS - 3] + "..."


def _show(value: object) -> str:
    # Only the first items of a list are formatted: with aliases it can be far larger than its file.
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        head = ", ".join("a list" if isinstance(item, list) else _show(item) for item in value[:4])
        return f"[{head}, ... {len(value)} in all]" if len(value) > 4 else f"[{head}]"
    return str(value)


def _read_text(path: Path, name: str) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        advice = NAMED_SETTINGS.get(name, "give the path of a YAML file")
        raise ConfigError(f"{name}: no such file; {advice}") from None
    except (OSError, ValueError) as error:
        reason = one_line(getattr(error, "strerror", None) or str(error))
        raise ConfigError(f"{name}: cannot be read: {reason}; give the path of a readable YAML file") from None
    if len(content) > LARGEST_FILE_BYTES:
        raise ConfigError(f"{name}: larger than {LARGEST_FILE_BYTES} bytes; a configuration is a short YAML file")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{name}:{line}: not UTF-8 text; save the file as UTF-8") from None


def _compose(text: str, where: Callable[[int], str]) -> Node:
    """Return the node tree; for empty text, a null node."""
    try:
        # Composing only builds nodes, never the objects named by tags.
        root = yaml.compose(text, Loader=_StrictLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = one_line(" ".join(part for part in (error.context, error.problem) if part))
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"{where(line)}: not valid YAML: {what}; {_advice(what, text, line)}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{where(line)}: not valid YAML: an unprintable character; remove it") from None
    return root or ScalarNode(_NULL, "", yaml.Mark("", 0, 0, 0, "", 0))


def _advice(what: str, text: str, line: int) -> str:
    """Return advice for the parser's error message `what`, which occurred at `line`, counted from 1."""
    if r"\t" in what:
        return "indent with spaces, not tabs"
    if "flow" in what:
        return "close each [ and {"
    above = [one for one in text.splitlines()[: line - 1] if one.strip() and not one.lstrip().startswith("#")]
    own = "".join(text.splitlines()[line - 1 : line])
    columns = [len(one) - len(one.lstrip(" ")) for one in (*above[-1:], own)]
    begins_section = bool(above) and above[-1].partition(" #")[0].rstrip().endswith(":") and columns[-1] > columns[0]
    has_text_with_colon = _TEXT_WITH_COLON.search(own) is not None
    if above and ":" in own and columns[0] != columns[-1] and not (begins_section or has_text_with_colon):
        return "start the keys of a section in the same column, further right than the section's name"
    return "put text with special characters in quotes"


_TEXT_WITH_COLON = re.compile(r":\s.*:(\s|$)")
_STANDARD = "tag:yaml.org,2002:"
_NULL = _STANDARD + "null"
_BOOL, _INT, _FLOAT, _TEXT = (_STANDARD + name for name in ("bool", "int", "float", "str"))
_LIST, _MAPPING, _MERGE = (_STANDARD + name for name in ("seq", "map", "merge"))
_AMBIGUOUS = "ambiguous number"

# Tag of an unquoted scalar: the first one whose pattern matches, otherwise text.
_PATTERNS = {
    _NULL: re.compile(r"(?:~|null|Null|NULL|)\Z"),
    _BOOL: re.compile(r"(?:true|True|TRUE|false|False|FALSE|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF)\Z"),
    # Octal 010 and 0o10, hexadecimal, binary, and underscores.
    _AMBIGUOUS: re.compile(r"[-+]?(?:0[0-9_]+|0[xob][0-9a-fA-F_]+|[0-9][0-9_]*_[0-9_]*(?:\.[0-9_]*)?)\Z"),
    _INT: re.compile(r"[-+]?[0-9]+\Z"),
    _FLOAT: re.compile(
        r"(?:[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"
    ),
    _MERGE: re.compile(r"<<\Z"),
}
_READERS: dict[str, Callable[[str], Any]] = {
    _NULL: lambda text: None,
    _BOOL: lambda text: text.lower() in ("true", "yes", "on"),
    _INT: int,
    # Python's float() reads `inf` and `nan` without the point of YAML.
    _FLOAT: lambda text: float(text.lower().replace(".inf", "inf").replace(".nan", "nan")),
    _TEXT: str,
    _MERGE: str,
}


class _Cycle(Node):
    """Replacement of an alias that refers to a list or mapping containing the alias."""


class _StrictLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the numbers of YAML 1.2, and without cycles among its nodes."""

    # The list under `None` applies to scalars with any first character.
    yaml_implicit_resolvers: ClassVar[dict[Any, Any]] = {None: list(_PATTERNS.items())}  # type: ignore[misc]

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """Return the next node, or `_Cycle` for an alias to a node without end mark, which is still being composed."""
        node = super().compose_node(parent, index)
        return node if node is None or node.end_mark else _Cycle(node.tag, None, node.start_mark, None)


_Pairs = dict[str, tuple[Node, Node]]


class _NodeReader:
    """Reader of plain values; a node with several aliases is read once. `where` returns the location of a line."""

    def __init__(self, source: str, where: Callable[[int], str]) -> None:
        self._source, self._where = source, where
        self._key: KeyPath = ()
        self._value = cache(self._read_value)
        self._keys = cache(self._read_keys)

    def settings(self, root: Node, above: KeyPath) -> tuple[Setting, ...]:
        """Return one setting for each key below the root that is not a section; `above` is the key of the root."""
        leaves = self._leaves(root, above, (line_of(root),) * len(above))
        found = tuple(islice(leaves, LARGEST_NUMBER_OF_SETTINGS + 1))
        if len(found) > LARGEST_NUMBER_OF_SETTINGS:
            self._key = ()
            self.refuse(root, f"more than {LARGEST_NUMBER_OF_SETTINGS} settings; a configuration has about a hundred")
        return found

    def refuse(self, node: Node, what: str) -> NoReturn:
        """Raise ConfigError with the line of the node and the key that is being read."""
        key = f"{one_line('.'.join(self._key))}: " if self._key else ""
        what = "an alias refers to a value that contains it; write the values out" if isinstance(node, _Cycle) else what
        raise ConfigError(f"{self._where(line_of(node))}: {key}{what}")

    def _leaves(self, node: Node, spelled: KeyPath, lines: tuple[int, ...]) -> Iterator[Setting]:
        self._key = spelled
        if not isinstance(node, MappingNode) or node.tag != _MAPPING or not node.value:
            yield Setting(spelled, self._value(node), node, self._source, spelled, lines)
            return
        for key, (key_node, value_node) in self._keys(node).items():
            yield from self._leaves(value_node, (*spelled, key), (*lines, line_of(key_node)))

    def _read_value(self, node: Node) -> Any:
        if isinstance(node, SequenceNode) and node.tag == _LIST:
            return [self._value(item) for item in node.value]
        if isinstance(node, MappingNode) and node.tag == _MAPPING:
            return {key: self._value(value_node) for key, (_, value_node) in self._keys(node).items()}
        if not isinstance(node, ScalarNode):
            self.refuse(node, f"the tag {shorten(node.tag)} is not supported; remove it")
        return self._scalar(node)

    def _scalar(self, node: ScalarNode) -> Any:
        """Return None, a bool, int, float or str."""
        tag, shown = node.tag, shorten(node.value)
        if tag == _AMBIGUOUS:
            advice = f'write a plain decimal number, or "{shown}" in quotes for text'
            self.refuse(node, f"{shown} is read differently by different YAML readers; {advice}")
        if tag not in _READERS:
            self.refuse(node, f"the tag {shorten(tag)} is not supported; remove it")
        try:
            if tag in _PATTERNS and not _PATTERNS[tag].match(node.value):
                raise ValueError(node.value)
            return _READERS[tag](node.value)
        except ValueError:
            self.refuse(node, f"{shown} cannot be read as {tag.removeprefix(_STANDARD)}; write a plain value")

    def _read_keys(self, node: MappingNode) -> _Pairs:
        """Return key -> (key node, value node); the mapping's own keys take precedence over merged keys."""
        own, merged = _Pairs(), _Pairs()
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                merged = self._merged(value_node) | merged
                continue
            if not isinstance(key_node, ScalarNode):
                self.refuse(key_node, f"a key is {_kind_of(key_node)}; keys are names")
            if key_node.value in own:
                self._key = (*self._key, key_node.value)
                self.refuse(key_node, f"given twice, first at line {line_of(own[key_node.value][0])}; keep one")
            own[key_node.value] = (key_node, value_node)
        return merged | own

    def _merged(self, node: Node) -> _Pairs:
        """Return the keys merged by `<<` from one mapping or from several; the first mapping takes precedence."""
        merged = _Pairs()
        for item in reversed(node.value) if isinstance(node, SequenceNode) else [node]:
            if not isinstance(item, MappingNode):
                self.refuse(item, "'<<' merges a mapping or a list of mappings; give an alias such as '<<: *name'")
            merged |= self._keys(item)
        return merged


def line_of(node: Node) -> int:
    """Return the line of a node, counted from 1."""
    return int(node.start_mark.line) + 1


def _kind_of(node: Node) -> str:
    if isinstance(node, ScalarNode):
        return f"'{shorten(node.value)}'"
    return "a list" if isinstance(node, SequenceNode) else "a mapping"


# Text that every YAML reader reads as text if unquoted; all other text is quoted.
_PLAIN_TEXT = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_SHORT_BOOLEANS = ("y", "Y", "n", "N")


class _QuotingDumper(yaml.SafeDumper):
    """Dumper that writes text in quotes unless it can only be text, and lists on one line."""

    def ignore_aliases(self, data: object) -> bool:
        """Return True: a repeated list is written again instead of an alias."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> ScalarNode:
    # PyYAML's resolver detects the scalars of YAML 1.1, such as `off`, that other readers may read as booleans.
    resolved = dumper.resolve(ScalarNode, text, (True, False))
    plain = _PLAIN_TEXT.fullmatch(text) and resolved == _TEXT and text not in _SHORT_BOOLEANS
    return dumper.represent_scalar(_TEXT, text, style=None if plain else '"')


def _represent_list(dumper: yaml.SafeDumper, items: list[object]) -> SequenceNode:
    return dumper.represent_sequence(_LIST, items, flow_style=True)


_QuotingDumper.add_representer(str, _represent_text)
_QuotingDumper.add_representer(list, _represent_list)
