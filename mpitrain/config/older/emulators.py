"""Translation of keys of emulator trainers for data assimilation (saber-pytorch and its predecessors).

Keys with the same meaning as a current key are in `synonyms`; `domain.min_ice_concentration` is a current key itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from mpitrain.config.yaml import KeyPath, Setting, show_value

_LOSS = "training.early_stopping_patience ends a run when its validation loss no longer decreases"
_JACOBIAN = "training.jacobian_tolerance ends a run when its Jacobian no longer changes"
_PREPARATION = "it controls how that program prepares columns; all levels of the data are used for training"
_NOT_READ: dict[str, tuple[str, ...]] = {
    _LOSS: ("training.convergence_tolerance", "training.convergence_window", "training.convergence_threshold"),
    _JACOBIAN: (
        "training.use_jacobian_stopping", "training.jacobian_convergence_tolerance",
        "training.jacobian_convergence_window", "training.min_epochs_jacobian",
    ),
    _PREPARATION: ("model.emulator_type", "variables.num_levels", "variables.reduced_grid"),
}  # fmt: skip
# Switches that need no setting here if they have this value, and the options that are then dropped with them.
_SWITCHED_OFF: dict[str, tuple[Any, tuple[str, ...]]] = {
    "training.use_log_scale_loss": (True, ()),
    "training.regularization.vertical_smoothness.enabled": (False, ("training.regularization",)),
    "model.use_conv1d": (False, ("model.conv_channels", "model.conv_kernel_size")),
}
_LOG_SCALE = "training.use_log_scale_loss=false: ignored; the report plots the loss on a logarithmic axis"
_FIRST_INPUTS: KeyPath = ("variables", "max_input_features")
_NUM_LEVELS: KeyPath = ("variables", "target_num_levels")
_INPUTS: KeyPath = ("variables", "input_variables")
_TARGETS: KeyPath = ("variables", "output_variables")
_DATA: KeyPath = ("data", "data_path")
_TABLES = ".npz", ".pt"
_LEAST_ICE: KeyPath = ("domain", "min_ice_concentration")
_ACTIVATION: KeyPath = ("model", "hidden_activation")
_DEPTH: KeyPath = ("model", "hidden_layers")
_NAME: KeyPath = ("model", "name")
_USE_AVERAGE: KeyPath = ("training", "use_ema")
_AVERAGE_DECAY: KeyPath = ("training", "ema_decay")
_DECAY_THERE = 0.999  # default of those trainers


def read_as_emulator(settings: Sequence[Setting]) -> tuple[tuple[Setting, ...], tuple[str, ...]]:
    """Return the settings with keys of those trainers translated, and a notice about each key that is ignored."""
    notices = [*_not_read(settings)]
    kept = tuple(one for one in settings if not any(_is_below(one, key) for keys in _NOT_READ.values() for key in keys))
    for switch, (off, options) in _SWITCHED_OFF.items():
        if any(_is_below(one, switch) and one.value == off for one in kept):
            kept = tuple(one for one in kept if not any(_is_below(one, key) for key in (switch, *options)))
    is_linear = [one for one in kept if _is_below(one, "training.use_log_scale_loss") and one.value is False]
    kept = _average(_levels(_first_inputs(tuple(one for one in kept if one not in is_linear))))
    activation, implied = _implied_activation(settings)
    return (*kept, *activation), (*notices, *[_LOG_SCALE for _ in is_linear], *implied)


def _average(settings: tuple[Setting, ...]) -> tuple[Setting, ...]:
    """Return the settings with `use_ema` and `ema_decay` replaced by `training.average`.

    `training.average` takes precedence if it is given too.
    """
    asked = [one for one in settings if one.path == _USE_AVERAGE and isinstance(one.value, bool)]
    if not asked:
        return settings
    kept = tuple(one for one in settings if one.path not in (_USE_AVERAGE, _AVERAGE_DECAY))
    if any(_is_below(one, "training.average") for one in kept):
        return kept
    if not asked[-1].value:
        return (*kept, replace(asked[-1], path=("training", "average"), value=None))
    decays = [one for one in settings if one.path == _AVERAGE_DECAY] or [replace(asked[-1], value=_DECAY_THERE)]
    return (*kept, replace(decays[-1], path=("training", "average", "decay")))


def _is_below(setting: Setting, key: str) -> bool:
    path = tuple(key.split("."))
    return setting.path[: len(path)] == path


def _not_read(settings: Sequence[Setting]) -> Iterator[str]:
    for instead, keys in _NOT_READ.items():
        given = [one for one in settings if any(_is_below(one, key) for key in keys)]
        if given:
            yield f"{', '.join(one.key for one in given)}: ignored; {instead}"


def _first_inputs(settings: tuple[Setting, ...]) -> tuple[Setting, ...]:
    """Return the settings with `max_input_features` applied: only that number of input variables is kept."""
    limits = [one.value for one in settings if one.path == _FIRST_INPUTS]
    if not limits or not (limits[-1] is None or (type(limits[-1]) is int and limits[-1] >= 0)):
        return settings  # not given, or an invalid value, which raises like any unknown key
    kept = (one for one in settings if one.path != _FIRST_INPUTS)
    cut = limits[-1] or None
    return tuple(
        replace(one, value=one.value[:cut]) if one.path == _INPUTS and isinstance(one.value, list) else one
        for one in kept
    )


def _levels(settings: tuple[Setting, ...]) -> tuple[Setting, ...]:
    """Return the settings with `target_num_levels` applied: each variable has that number of columns in a table."""
    given = [one for one in settings if one.path == _NUM_LEVELS]
    if not given or not (type(given[-1].value) is int and given[-1].value > 0):
        return settings
    kept = tuple(one for one in settings if one.path != _NUM_LEVELS)
    if not any(one.path == _DATA and str(one.value).endswith(_TABLES) for one in kept):
        return kept
    levels = range(given[-1].value)
    return tuple(
        replace(one, value=[f"{name}[{level}]" for name in one.value for level in levels])
        if one.path in (_INPUTS, _TARGETS) and isinstance(one.value, list)
        else one
        for one in kept
    )


def _implied_activation(settings: Sequence[Setting]) -> tuple[tuple[Setting, ...], tuple[str, ...]]:
    """Return GELU, those trainers' default, and its notice for a deep network of their files without an activation."""
    keys = [*(key for keys in _NOT_READ.values() for key in keys), *_SWITCHED_OFF, ".".join(_FIRST_INPUTS),
            ".".join(_NUM_LEVELS)]  # fmt: skip
    of_theirs = [one for one in settings if any(_is_below(one, key) for key in keys)]
    of_theirs += [one for one in settings if one.path == _LEAST_ICE and one.value is not None]
    paths = {one.path for one in settings}
    if not of_theirs or _DEPTH not in paths or paths & {_ACTIVATION, _NAME}:
        return (), ()
    reason = f"implied by {of_theirs[0].key}, a key of emulator trainers; set the activation to choose another"
    notice = f"{'.'.join(_ACTIVATION)}={show_value('gelu')}: {reason}"
    return (replace(of_theirs[0], path=_ACTIVATION, value="gelu"),), (notice,)
