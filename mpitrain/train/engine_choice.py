"""Which step engine a run uses, and why: decided from things that do not depend on the number of ranks."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from mpitrain.comm.session import Session
from mpitrain.config import RunConfig
from mpitrain.errors import MissingDependencyError
from mpitrain.models.icenet import IceNet
from mpitrain.train.dense_kernel import DenseNetwork, build_kernel, load_kernel
from mpitrain.train.settings import DTYPES

_ACTIVATIONS = {"none": "identity", "sigmoid": "sigmoid", "relu": "relu", "gelu": "gelu"}


@dataclass(frozen=True)
class EngineChoice:
    """The engine's name; what the compiled one needs; a line for the user where `auto` had to give way."""

    name: str
    network: DenseNetwork | None = None
    kernel: ctypes.CDLL | None = None
    notice: str | None = None


def choose_engine(config: RunConfig, session: Session, model: IceNet, resumed_engine: str | None) -> EngineChoice:
    """Choose by `training.engine`; `auto` keeps the engine of the resumed run, else takes the fastest. Collective.

    Raises MissingDependencyError, on all ranks, when the asked engine cannot serve here.
    """
    requested = resumed_engine if config.training.engine == "auto" and resumed_engine else config.training.engine
    if requested == "eager" or (requested == "auto" and session.device.type != "cpu"):
        return EngineChoice("eager")
    network = dense_network_of(config, model)
    try:
        return EngineChoice("compiled", network, _load_everywhere(session, network))
    except MissingDependencyError as error:
        if requested == "compiled":
            raise
        return EngineChoice("eager", notice=f"training.engine=eager, the slower one: {error}")


def _load_everywhere(session: Session, network: DenseNetwork) -> ctypes.CDLL:
    # The root builds first: on one file system the others find the kernel ready, and the compiler runs once.
    session.on_root(lambda: build_kernel(network))
    return session.together(lambda: load_kernel(network))


def dense_network_of(config: RunConfig, model: IceNet) -> DenseNetwork:
    """Describe IceNet to the kernel."""
    sizes = (model.fc1.in_features, model.fc1.out_features, model.fc2.out_features)
    hidden = _ACTIVATIONS[config.model.hidden_activation]
    return DenseNetwork(sizes, hidden, "sigmoid", config.training.loss_function, DTYPES[config.training.dtype])
