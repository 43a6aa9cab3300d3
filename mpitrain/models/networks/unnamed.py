"""The network of `model.name: null`: icenet if the only target is the ice concentration, otherwise mlp."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from mpitrain.config.model import NETWORKS, is_ice_concentration
from mpitrain.models.networks.icenet import IceNetSettings
from mpitrain.models.networks.mlp import MlpSettings
from mpitrain.models.networks.network import Network


class UnnamedNetwork(MlpSettings):
    """Network that depends on the names of the targets; it has the options of mlp."""

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
        """See `Component.problems`: none, because the resolved network reports its own."""
        yield from ()
