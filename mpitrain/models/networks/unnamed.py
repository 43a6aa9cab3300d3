"""The network of `model.name: null`: icenet where the only target is the ice concentration, else mlp."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from mpitrain.config.model import NETWORKS, is_ice_concentration
from mpitrain.models.networks.icenet import IceNetSettings
from mpitrain.models.networks.mlp import MlpSettings
from mpitrain.models.networks.network import Network


class UnnamedNetwork(MlpSettings):
    """A network whose name the targets decide; it has the options of mlp."""

    in_reference: ClassVar[frozenset[str] | None] = IceNetSettings.in_reference

    name: None = None  # type: ignore[assignment]

    def resolved(self, target_names: Sequence[str] | None) -> Network:
        """See `Network.resolved`. Raises PydanticCustomError for options that the resolved network does not have."""
        is_ice = target_names is None or (len(target_names) == 1 and is_ice_concentration(target_names[0]))
        is_icenet = is_ice and self.hidden_layers == 1 and not self.output_transforms
        kind = IceNetSettings if is_icenet else MlpSettings
        network: Network = NETWORKS.validate({**self.model_dump(), "name": kind().name})
        return network

    def problems(self) -> Iterator[tuple[str, object, str]]:
        """See `Component.problems`: those of the resolved network are told instead."""
        yield from ()
