"""Reads YAML text, from a file or from an override, as a flat list of settings with their lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import yaml
from yaml import MappingNode, Node, ScalarNode

from mpitrain.config.settings import KeyPath, Setting
from mpitrain.config.show import one_line
from mpitrain.config.yaml_nodes import NodeReader, kind_of
from mpitrain.config.yaml_scalars import NULL, StrictLoader
from mpitrain.errors import ConfigError

LARGEST_FILE_BYTES = 1 << 20


def read_settings(path: Path) -> tuple[Setting, ...]:
    """Return the settings of a YAML file in its order.

    Raises ConfigError where the file cannot be read, is not UTF-8 or not a YAML mapping, gives a key twice, or holds
    a number that YAML readers disagree about.
    """
    name = one_line(str(path))
    return parse_settings(_read_text(path, name), name, lambda line: f"{name}:{line}")


def parse_settings(text: str, source: str, where: Callable[[int], str], above: KeyPath = ()) -> tuple[Setting, ...]:
    """Return the settings of YAML text, in order; `above` is the key that the text is the value of, if any.

    `where` turns a line number into the place that an error names. Raises ConfigError like `read_settings`.
    """
    reader = NodeReader(where)
    try:
        root = _compose(text, where)
        if above:
            return reader.settings(root, source, above)
        if root.tag == NULL:
            return ()
        if not isinstance(root, MappingNode):
            reader.refuse(root, f"the file holds {kind_of(root)}; write sections of keys, such as 'training:'")
        return reader.settings(root, source) if root.value else ()
    except RecursionError:
        raise ConfigError(f"{where(1)}: nested too deeply; a configuration has three levels") from None


def _compose(text: str, where: Callable[[int], str]) -> Node:
    """Return the node tree; of empty text, null."""
    try:
        # Composing only builds nodes, never the objects that tags ask for.
        root = yaml.compose(text, Loader=StrictLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = one_line(" ".join(part for part in (error.context, error.problem) if part))
        raise ConfigError(f"{where(mark.line + 1 if mark else 1)}: not valid YAML: {what}{_hint(what)}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{where(line)}: not valid YAML: a character that cannot be printed; remove it") from None
    return root or ScalarNode(NULL, "", yaml.Mark("", 0, 0, 0, "", 0))


def _hint(what: str) -> str:
    return "; indent with spaces, not tabs" if r"\t" in what else "; put text with special characters in quotes"


def _read_text(path: Path, name: str) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"{name}: no such file; give the path of a YAML file") from None
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
