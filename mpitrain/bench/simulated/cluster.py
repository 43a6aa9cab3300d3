"""The description of a cluster: nodes, cores, latency and bandwidth, in a short YAML file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpitrain.config.yaml import Setting, read_settings, show_value
from mpitrain.errors import ConfigError

MOST_NODES = 65536


@dataclass(frozen=True)
class Cluster:
    """Equal nodes on one switch that never is the bottleneck.

    `ranks_per_node` share a node's cores. `core_speed`: how many times as fast as a core of this machine, where
    computing is measured. `memory_latency_us`: until a core sees what another one wrote. `memory_bandwidth_gb_s`: at
    which one core copies or adds what others wrote; None: as measured here. 1 GB is 10^9 bytes; latency and bandwidth
    of the network are those between two nodes, in each direction.
    """

    nodes: int
    cores: int
    ranks_per_node: int
    network_latency_us: float
    network_bandwidth_gb_s: float
    memory_latency_us: float = 0.1
    memory_bandwidth_gb_s: float | None = None
    core_speed: float = 1.0

    @property
    def most_ranks(self) -> int:
        """The ranks that fit."""
        return self.nodes * self.ranks_per_node

    def describe(self) -> str:
        """Return a line that describes the cluster."""
        speed = "as fast as here" if self.core_speed == 1 else f"{self.core_speed:g} times as fast as here"
        return (
            f"{self.nodes} nodes of {self.cores} cores {speed}, {self.ranks_per_node} ranks a node; network "
            f"{self.network_latency_us:g} us, {self.network_bandwidth_gb_s:g} GB/s; memory {self.memory_latency_us:g} "
            f"us, {self.memory_bandwidth_gb_s or 0:.3g} GB/s"
        )


def read_cluster(path: Path) -> Cluster:
    """Return the cluster that a YAML file describes. Raises ConfigError for the first thing that is wrong."""
    values: dict[str, Any] = {}
    for setting in read_settings(path):
        key = ".".join(setting.path)
        if key not in _KEYS:
            raise ConfigError(f"{setting.where}: {setting.key}: unknown key; give some of {', '.join(_KEYS)}")
        field, rules = _KEYS[key]
        values[field] = _checked(setting, rules)
    missing = [key for key in _REQUIRED if _KEYS[key][0] not in values]
    if missing:
        raise ConfigError(f"{path}: {missing[0]}: missing; a cluster needs {', '.join(_REQUIRED)}")
    return Cluster(**{"ranks_per_node": largest_power_of_two(values["cores"]), **values})


def largest_power_of_two(number: int) -> int:
    """Return the largest power of two up to `number`, which is at least 1."""
    return 1 << (number.bit_length() - 1)


def is_power_of_two(number: int) -> bool:
    """Tell whether a positive number is one."""
    return number & (number - 1) == 0


def _checked(setting: Setting, rules: Sequence[_Rule]) -> float:
    """Return the number that is given. Raises ConfigError for anything else, and for one that a rule does not allow."""
    value, is_number = setting.value, isinstance(setting.value, int | float) and not isinstance(setting.value, bool)
    for is_allowed, words in rules:
        if not is_number or not is_allowed(value):
            shown = f"{setting.where}: {setting.key}: {show_value(value)}"
            raise ConfigError(f"{shown} is not allowed; give {words}")
    return float(value) if _COUNT not in rules else int(value)


_LARGEST = 1e12
_Rule = tuple[Callable[[float], bool], str]
_COUNT: _Rule = (
    lambda value: isinstance(value, int) and 1 <= value <= MOST_NODES,
    f"a whole number, 1 to {MOST_NODES}",
)
_POWER_OF_TWO: _Rule = (
    lambda value: is_power_of_two(int(value)),
    "a power of two, so that each node's sum is one part of the tree over all ranks",
)
_ABOVE_ZERO: _Rule = (lambda value: 0 < value <= _LARGEST, "a number above 0")
_FROM_ZERO: _Rule = (lambda value: 0 <= value <= _LARGEST, "a number, at least 0")
_REQUIRED = ("nodes", "node.cores", "network.latency_us", "network.bandwidth_gb_s")
# The field of a cluster that a key sets, and what its value must be.
_KEYS: dict[str, tuple[str, tuple[_Rule, ...]]] = {
    "nodes": ("nodes", (_COUNT,)),
    "node.cores": ("cores", (_COUNT,)),
    "network.latency_us": ("network_latency_us", (_FROM_ZERO,)),
    "network.bandwidth_gb_s": ("network_bandwidth_gb_s", (_ABOVE_ZERO,)),
    "node.ranks": ("ranks_per_node", (_COUNT, _POWER_OF_TWO)),
    "node.memory_latency_us": ("memory_latency_us", (_FROM_ZERO,)),
    "node.memory_bandwidth_gb_s": ("memory_bandwidth_gb_s", (_ABOVE_ZERO,)),
    "node.core_speed": ("core_speed", (_ABOVE_ZERO,)),
}
