"""The user's own network, named package.module:callable."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from mpitrain.errors import ConfigError, one_line
from mpitrain.models.normalized import NormalizedModel

Result = TypeVar("Result")


def build_user_model(name: str, num_inputs: int, num_outputs: int) -> NormalizedModel:
    """Return the module that `package.module:callable` makes of (num_inputs, num_outputs), between normalisations.

    The current directory is searched first. Raises ConfigError, naming model.name, for whatever the user's code lacks.
    """
    module_name, _, callable_name = name.partition(":")
    # Kept on the path: the user's code may import its neighbours later.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    module = _of_user(
        name, lambda: importlib.import_module(module_name), f"{module_name} cannot be imported",
        "give a module of the current directory or of an installed package",
    )  # fmt: skip
    make = getattr(module, callable_name, None)
    if make is None:
        raise _error(name, f"{module_name} has no '{callable_name}'; give the name of a class or function in it")
    if not callable(make):
        raise _error(name, f"'{callable_name}' is {type(make).__name__}, not callable; give a class or function")
    call = f"{callable_name}({num_inputs}, {num_outputs})"
    network = _of_user(
        name, lambda: make(num_inputs, num_outputs), f"{call} failed",
        "it is called with the numbers of inputs and of outputs",
    )  # fmt: skip
    _check_network(name, call, network)
    return NormalizedModel(network, num_inputs, num_outputs)


def check_answers(name: str, model: nn.Module, inputs: torch.Tensor, num_outputs: int) -> None:
    """Try `model` on a few `inputs` (b, F) or (b, F, H, W) before training starts; changes nothing.

    Raises ConfigError, naming model.name, when it fails on them or answers in another shape than (b, O[, H, W]).
    """
    # The network itself: after it, a missing axis may be hidden by broadcasting.
    network = model.network if isinstance(model, NormalizedModel) else model
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            answer = _of_user(
                name, lambda: network(inputs), f"its forward fails on inputs of shape {tuple(inputs.shape)}",
                "data.samples says what a sample is",
            )  # fmt: skip
    finally:
        model.train(was_training)
    expected = (len(inputs), num_outputs, *inputs.shape[2:])
    if not isinstance(answer, torch.Tensor) or tuple(answer.shape) != expected:
        found = tuple(answer.shape) if isinstance(answer, torch.Tensor) else type(answer).__name__
        raise _error(name, f"for inputs of shape {tuple(inputs.shape)} it returns {found}; return shape {expected}")


def _check_network(name: str, call: str, network: object) -> None:
    if not isinstance(network, nn.Module):
        raise _error(name, f"{call} returned {type(network).__name__}; return a torch.nn.Module")
    parameters = list(network.parameters())
    if not any(parameter.requires_grad for parameter in parameters):
        raise _error(name, f"{call} has no parameters to train; return a torch.nn.Module with layers")
    if any(map(is_lazy, parameters)):
        raise _error(name, f"{call} has lazy layers; give each layer its size")
    if any(getattr(module, "track_running_stats", True) is False for module in network.modules()):
        raise _error(name, f"{call} has a norm layer with track_running_stats=False; leave that argument out")


def _of_user(name: str, action: Callable[[], Result], what: str, advice: str) -> Result:
    try:
        return action()
    except (Exception, SystemExit) as error:  # whatever the user's code does is the user's to fix
        reason = one_line((str(error).splitlines() or [""])[0])
        raise _error(name, f"{what} ({type(error).__name__}: {reason}); {advice}") from error


def _error(name: str, text: str) -> ConfigError:
    return ConfigError(f"model.name={name}: {text}")
