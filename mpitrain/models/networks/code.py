"""Networks of the user or of a library, named as package.module:callable."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ClassVar

from mpitrain.config import CodeComponent, CodeName, shorten
from mpitrain.config.model import OutputTransforms
from mpitrain.models.networks.network import Network

if TYPE_CHECKING:
    from mpitrain.models.normalized import PhysicalModel


class CodeNetwork(CodeComponent, Network):
    """Network from a named callable, which is called with the numbers of inputs and outputs and the options."""

    setting = "model.name"
    kind = Network
    num_given = 2

    is_code = True
    ignored: ClassVar[frozenset[str]] = frozenset({"hidden_size"})  # accepted by earlier versions

    name: CodeName
    output_transforms: OutputTransforms | None = None
    """Train on log(y), logit(y) or a power of the named targets: {precip: log, cover: logit, snow: {power: 0.5}}.
    Statistics and losses are those of the transformed targets; model.pt includes the inverse and returns physical
    units."""

    @property
    def may_have_batch_norm(self) -> bool:
        """See `Network.may_have_batch_norm`."""
        return True

    def describe(self) -> str:
        """See `Component.describe`."""
        return f"your own, {self.name}"

    def build(self, num_inputs: int, num_outputs: int) -> PhysicalModel:
        """See `Network.build`."""
        from mpitrain.models.normalized import NormalizedModel, PhysicalModel
        from mpitrain.models.user_model import check_network

        self.check()
        own, target = self.own(), self.code.load()
        make = functools.partial(target, **self.options) if own is None else own.build
        options = "".join(f", {name}={shorten(repr(value))}" for name, value in self.options.items())
        call = f"{self.code.name.partition(':')[2]}({num_inputs}, {num_outputs}{options})"
        network = self.code.run(
            lambda: make(num_inputs, num_outputs), f"{call} failed",
            "it is called with the numbers of inputs and of outputs",
        )  # fmt: skip
        check_network(self.code, call, network)
        is_whole = isinstance(network, PhysicalModel)
        return network if is_whole else NormalizedModel(network, num_inputs, num_outputs)
