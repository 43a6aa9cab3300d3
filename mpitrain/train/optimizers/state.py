"""The state of an optimiser as named tensors, for checkpoints: tensors and numbers of parameters and groups.

Numbers are stored as tensors () under names that end in `#number`. Optimisers are torch's or have the same
`param_groups` and `state`; an engine's own may have `named_state` and `set_state` instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mpitrain.comm import Array

if TYPE_CHECKING:
    import torch

_NUMBER, _GROUP = "#number", "optimizer.#group."


def trained_names(model: Any) -> list[str]:
    """Return the names of the parameters that an optimiser of `model` has: all that are not frozen."""
    return [name for name, one in model.named_parameters() if getattr(one, "requires_grad", True)]


def optimizer_tensors(optimizer: Any, names: list[str]) -> dict[str, Array]:
    """Return copies of the optimiser's state as named tensors, e.g. "optimizer.fc1.weight.exp_avg"."""
    if hasattr(optimizer, "named_state"):
        return {f"optimizer.{name}": array.copy() for name, array in optimizer.named_state().items()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    of_parameters = dict(
        _as_tensor(f"optimizer.{name}.{key}", value)
        for name, parameter in zip(names, parameters, strict=True)
        for key, value in optimizer.state[parameter].items()
        if value is not None  # SGD without momentum keeps None
    )
    return of_parameters | dict(_as_tensor(f"{_GROUP}{key}", value) for key, value in _counters(optimizer).items())


def restore_optimizer(optimizer: Any, names: list[str], tensors: Mapping[str, Array]) -> None:
    """Restore the state from `tensors`, the result of `optimizer_tensors`."""
    if hasattr(optimizer, "set_state"):
        optimizer.set_state({name.removeprefix("optimizer."): array for name, array in tensors.items()})
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for name, parameter in zip(names, parameters, strict=True):
        prefix = f"optimizer.{name}."
        for key, value in tensors.items():
            if key.startswith(prefix):
                _restore(optimizer, parameter, key[len(prefix) :], value)
    for key, value in tensors.items():
        if key.startswith(_GROUP):
            number, _, option = key[len(_GROUP) :].removesuffix(_NUMBER).partition(".")
            optimizer.param_groups[int(number)][option] = value.item()


def _restore(optimizer: Any, parameter: torch.Tensor, key: str, stored: Array) -> None:
    import torch

    value = torch.as_tensor(stored)
    if key.endswith(_NUMBER):
        optimizer.state[parameter][key.removesuffix(_NUMBER)] = value.item()
        return
    own = optimizer.state[parameter].get(key)
    if own is not None:
        own.copy_(value)  # in place: an engine may share this memory
        return
    # torch keeps the step count on the CPU, but its fused kernels keep it on the parameter's device.
    is_count = key == "step" and not optimizer.param_groups[0].get("fused")
    optimizer.state[parameter][key] = value.clone().to(torch.device("cpu") if is_count else parameter.device)


def _as_tensor(name: str, value: torch.Tensor | float) -> tuple[str, torch.Tensor]:
    import torch

    if isinstance(value, torch.Tensor):
        return name, value.detach().cpu().clone()
    kind = torch.float64 if isinstance(value, float) else None  # None: torch's type for int or bool
    return name + _NUMBER, torch.tensor(value, dtype=kind)


def _counters(optimizer: Any) -> dict[str, float]:
    """Return the numbers in the groups that differ from their defaults, by the group's number and their key.

    These are numbers that the optimiser itself changes; the learning rate is left out.
    """
    defaults = getattr(optimizer, "defaults", {})
    return {
        f"{number}.{key}": value
        for number, group in enumerate(optimizer.param_groups)
        for key, value in group.items()
        if type(value) in (int, float) and key != "lr" and value != defaults.get(key)
    }
