"""A cluster as its users describe it: nodes, cores, latency and bandwidth, in a short YAML file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mpitrain.config.yaml import Setting, read_settings, show_value
from mpitrain.errors import ConfigError

DEFAULT_MEMORY_LATENCY_US = 0.1
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
    memory_latency_us: float = DEFAULT_MEMORY_LATENCY_US
    memory_bandwidth_gb_s: float | None = None
    core_speed: float = 1.0

    @property
    def most_ranks(self) -> int:
        """The ranks that fit."""
        return self.nodes * self.ranks_per_node

    def describe(self) -> str:
        """Return a line that names what the figures rest on."""
        speed = "as fast as here" if self.core_speed == 1 else f"{self.core_speed:g} times as fast as here"
        return (
            f"{self.nodes} nodes of {self.cores} cores {speed}, {self.ranks_per_node} ranks a node; network "
            f"{self.network_latency_us:g} us, {self.network_bandwidth_gb_s:g} GB/s; memory {self.memory_latency_us:g} "
            f"us, {self.memory_bandwidth_gb_s or 0:.3g} GB/s"
        )


def read_cluster(path: Path) -> Cluster:
    """Return the cluster that a YAML file describes. Raises ConfigError for the first thing that is wrong."""
    values: dict[str, float] = {}
    for setting in read_settings(path):
        key = ".".join(setting.path)
        if key not in _KEYS:
            raise ConfigError(f"{setting.where}: {setting.key}: unknown key; give some of {', '.join(_KEYS)}")
        values[key] = _KEYS[key](setting)
    missing = [key for key in _REQUIRED if key not in values]
    if missing:
        raise ConfigError(f"{path}: {missing[0]}: missing; a cluster needs {', '.join(_REQUIRED)}")
    cores = int(values["node.cores"])
    return Cluster(
        int(values["nodes"]),
        cores,
        int(values.get("node.ranks", largest_power_of_two(cores))),
        values["network.latency_us"],
        values["network.bandwidth_gb_s"],
        values.get("node.memory_latency_us", DEFAULT_MEMORY_LATENCY_US),
        values.get("node.memory_bandwidth_gb_s"),
        values.get("node.core_speed", 1.0),
    )


def largest_power_of_two(number: int) -> int:
    """Return the largest power of two up to `number`, which is at least 1."""
    return 1 << (number.bit_length() - 1)


def is_power_of_two(number: int) -> bool:
    """Tell whether a positive number is one."""
    return number & (number - 1) == 0


def _count(setting: Setting) -> float:
    value = setting.value
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_NODES:
        return value
    raise _refused(setting, f"a whole number, 1 to {MOST_NODES}")


def _power_of_two(setting: Setting) -> float:
    if is_power_of_two(int(_count(setting))):
        return float(setting.value)
    raise _refused(setting, "a power of two, so that each node's sum is one part of the tree over all ranks")


def _number(is_allowed: Callable[[float], bool], words: str) -> Callable[[Setting], float]:
    def read(setting: Setting) -> float:
        value = setting.value
        if isinstance(value, int | float) and not isinstance(value, bool) and is_allowed(value):
            return float(value)
        raise _refused(setting, words)

    return read


def _refused(setting: Setting, allowed: str) -> ConfigError:
    return ConfigError(f"{setting.where}: {setting.key}: {show_value(setting.value)} is not allowed; give {allowed}")


_LARGEST = 1e12
_above_zero = _number(lambda value: 0 < value <= _LARGEST, "a number above 0")
_from_zero = _number(lambda value: 0 <= value <= _LARGEST, "a number, at least 0")
_REQUIRED = ("nodes", "node.cores", "network.latency_us", "network.bandwidth_gb_s")
_KEYS: dict[str, Callable[[Setting], float]] = {
    "nodes": _count,
    "node.cores": _count,
    "network.latency_us": _from_zero,
    "network.bandwidth_gb_s": _above_zero,
    "node.ranks": _power_of_two,
    "node.memory_latency_us": _from_zero,
    "node.memory_bandwidth_gb_s": _above_zero,
    "node.core_speed": _above_zero,
}
