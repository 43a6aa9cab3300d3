"""From YAML's node tree to a flat list of settings; keys given twice, cycles and odd tags are refused by line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from yaml import MappingNode, Node, ScalarNode, SequenceNode

from mpitrain.config.settings import KeyPath, Origin, Setting
from mpitrain.config.show import one_line, shorten
from mpitrain.config.yaml_scalars import LIST, MAPPING, MERGE, plain_value
from mpitrain.errors import ConfigError

LARGEST_NUMBER_OF_SETTINGS = 1000

_Pairs = dict[str, tuple[Node, Node]]
_Leaf = tuple[KeyPath, tuple[int, ...], Node]


def line_of(node: Node) -> int:
    """Return the line of a node, counted from 1."""
    return int(node.start_mark.line) + 1


def kind_of(node: Node) -> str:
    """Return what a node is, in words; a scalar is told by its text."""
    if isinstance(node, MappingNode):
        return "a mapping"
    return "a list" if isinstance(node, SequenceNode) else f"'{shorten(str(node.value))}'"


class NodeReader:
    """Reads plain values, each node once however many aliases name it. `where` turns a line into a place."""

    def __init__(self, where: Callable[[int], str]) -> None:
        self._where = where
        self._values: dict[int, Any] = {}
        self._pairs: dict[int, _Pairs] = {}
        self._open: set[tuple[str, int]] = set()
        self._key: KeyPath = ()

    def settings(self, root: Node, source: str, above: KeyPath = ()) -> tuple[Setting, ...]:
        """Return one setting for each key below the root that holds no keys itself; `above` is the root's own key."""
        found: list[Setting] = []
        for spelled, lines, node in self._leaves(root, above, (line_of(root),) * len(above)):
            found.append(Setting(spelled, self._value(node), Origin(source, spelled, lines, node)))
            if len(found) > LARGEST_NUMBER_OF_SETTINGS:
                self._key = ()
                self.refuse(
                    root, f"more than {LARGEST_NUMBER_OF_SETTINGS} settings; a configuration has about a hundred"
                )
        return tuple(found)

    def refuse(self, node: Node, what: str) -> NoReturn:
        """Raise ConfigError at the node's line, naming the key that is being read."""
        key = f"{one_line('.'.join(self._key))}: " if self._key else ""
        raise ConfigError(f"{self._where(line_of(node))}: {key}{what}")

    def _leaves(self, node: Node, spelled: KeyPath, lines: tuple[int, ...]) -> Iterator[_Leaf]:
        self._key = spelled
        if not isinstance(node, MappingNode) or node.tag != MAPPING or not node.value:
            yield spelled, lines, node
            return
        for key, (key_node, value_node) in self._keys(node).items():
            with self._entered(value_node, "settings"):
                yield from self._leaves(value_node, (*spelled, key), (*lines, line_of(key_node)))

    def _value(self, node: Node) -> Any:
        if id(node) not in self._values:
            with self._entered(node, "value"):
                self._values[id(node)] = self._build(node)
        return self._values[id(node)]

    def _build(self, node: Node) -> Any:
        if isinstance(node, SequenceNode) and node.tag == LIST:
            return [self._value(item) for item in node.value]
        if isinstance(node, MappingNode) and node.tag == MAPPING:
            return {key: self._value(pair[1]) for key, pair in self._keys(node).items()}
        if not isinstance(node, ScalarNode):
            self.refuse(node, f"the tag {shorten(node.tag)} is not read; remove it")
        try:
            return plain_value(node)
        except ValueError as error:
            self.refuse(node, str(error))

    def _keys(self, node: MappingNode) -> _Pairs:
        """Return key -> (key node, value node), own keys before merged ones."""
        if id(node) not in self._pairs:
            with self._entered(node, "keys"):
                own, merged = self._own_and_merged(node)
                self._pairs[id(node)] = {**own, **{key: pair for key, pair in merged.items() if key not in own}}
        return self._pairs[id(node)]

    def _own_and_merged(self, node: MappingNode) -> tuple[_Pairs, _Pairs]:
        own, merged = _Pairs(), _Pairs()
        for key_node, value_node in node.value:
            if key_node.tag == MERGE:
                merged = {**self._merged(value_node), **merged}
                continue
            if not isinstance(key_node, ScalarNode):
                self.refuse(key_node, f"a key is {kind_of(key_node)}; keys are names")
            if key_node.value in own:
                self._key = (*self._key, key_node.value)
                self.refuse(key_node, f"given twice, first at line {line_of(own[key_node.value][0])}; keep one")
            own[key_node.value] = (key_node, value_node)
        return own, merged

    def _merged(self, node: Node) -> _Pairs:
        """Return what `<<` brings: one mapping's keys, or those of several, of which the first wins."""
        if isinstance(node, MappingNode):
            return self._keys(node)
        if not isinstance(node, SequenceNode) or not all(isinstance(item, MappingNode) for item in node.value):
            self.refuse(node, "'<<' merges a mapping or a list of mappings; give an alias such as '<<: *name'")
        merged = _Pairs()
        for item in reversed(node.value):
            merged.update(self._keys(item))
        return merged

    @contextmanager
    def _entered(self, node: Node, reading: str) -> Iterator[None]:
        """Refuse a node that holds itself: it would be read without end."""
        if (reading, id(node)) in self._open:
            self.refuse(node, "an alias refers to what it stands in; write the values out")
        self._open.add((reading, id(node)))
        yield
        self._open.discard((reading, id(node)))
