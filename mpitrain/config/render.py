"""A configuration as YAML text that loads to an equal one, and the schema of all keys as JSON text."""

from __future__ import annotations

import json
import math
import re

import yaml

from mpitrain.config.run import RunConfig

# What no YAML reader takes for anything but text, and no reader of this file for a number: all else is quoted.
_PLAIN_TEXT = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_SHORT_BOOLEANS = ("y", "Y", "n", "N")


def render_yaml(config: RunConfig) -> str:
    """Return YAML with every value of the configuration; loading it gives an equal configuration."""
    return yaml.dump(config.model_dump(), Dumper=_QuotingDumper, sort_keys=False, width=math.inf)


def render_schema() -> str:
    """Return the JSON schema of a configuration, with the description of every key."""
    return json.dumps(RunConfig.model_json_schema(), indent=2) + "\n"


class _QuotingDumper(yaml.SafeDumper):
    """Writes text in quotes unless it can be nothing else, and lists on one line."""

    def ignore_aliases(self, data: object) -> bool:
        """Write the same list twice rather than an alias."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # PyYAML knows the words of YAML 1.1, such as `off`, that another reader of this file may take for a boolean.
    resolved = dumper.resolve(yaml.ScalarNode, text, (True, False))
    plain = _PLAIN_TEXT.fullmatch(text) and resolved == "tag:yaml.org,2002:str" and text not in _SHORT_BOOLEANS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


def _represent_list(dumper: yaml.SafeDumper, items: list[object]) -> yaml.SequenceNode:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True)


_QuotingDumper.add_representer(str, _represent_text)
_QuotingDumper.add_representer(list, _represent_list)
