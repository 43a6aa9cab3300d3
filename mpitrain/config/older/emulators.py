"""Keys of the trainers of emulators for data assimilation (saber-pytorch and its forerunners): what does each here.

Keys that mean what today's mean are in `synonyms`; `domain.min_ice_concentration` is a setting of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from mpitrain.config.yaml import KeyPath, Setting, show_value

_LOSS = "training.early_stopping_patience ends a run whose validation loss gets no better"
_JACOBIAN = "training.jacobian_tolerance ends a run whose Jacobian has settled"
_PREPARATION = "it directs how that program prepares columns; all levels of the data are trained on"
_NOT_READ: dict[str, tuple[str, ...]] = {
    _LOSS: ("training.convergence_tolerance", "training.convergence_window", "training.convergence_threshold"),
    _JACOBIAN: (
        "training.use_jacobian_stopping", "training.jacobian_convergence_tolerance",
        "training.jacobian_convergence_window", "training.min_epochs_jacobian",
    ),
    _PREPARATION: ("model.emulator_type", "variables.num_levels", "variables.reduced_grid"),
}  # fmt: skip
# Switches that ask for nothing here where they have this value, and the options that then go with them.
_SWITCHED_OFF: dict[str, tuple[Any, tuple[str, ...]]] = {
    "training.use_log_scale_loss": (True, ()),
    "training.regularization.vertical_smoothness.enabled": (False, ("training.regularization",)),
    "model.use_conv1d": (False, ("model.conv_channels", "model.conv_kernel_size")),
}
_LOG_SCALE = "training.use_log_scale_loss=false: not read; the report draws the loss on a logarithmic axis"
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
_DECAY_THERE = 0.999  # of those trainers, where a file does not say


def read_as_emulator(settings: Sequence[Setting]) -> tuple[tuple[Setting, ...], tuple[str, ...]]:
    """Return the settings without keys of those trainers, with what they ask for here, and a line on each other."""
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
    """Return the settings with the moving average of the weights that `use_ema` and `ema_decay` ask for, or none.

    `training.average` counts where it is given too.
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
            yield f"{', '.join(one.key for one in given)}: not read; {instead}"


def _first_inputs(settings: tuple[Setting, ...]) -> tuple[Setting, ...]:
    """Return the settings without `max_input_features`, which keeps the first of the input variables."""
    limits = [one.value for one in settings if one.path == _FIRST_INPUTS]
    if not limits or not (limits[-1] is None or (type(limits[-1]) is int and limits[-1] >= 0)):
        return settings  # nothing to do, or a value that is refused as any unknown key is
    kept = (one for one in settings if one.path != _FIRST_INPUTS)
    cut = limits[-1] or None
    return tuple(
        replace(one, value=one.value[:cut]) if one.path == _INPUTS and isinstance(one.value, list) else one
        for one in kept
    )


def _levels(settings: tuple[Setting, ...]) -> tuple[Setting, ...]:
    """Return the settings without `target_num_levels`: so many columns of a prepared table are one variable's."""
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
    """Return GELU and its notice for a deep network of such a file that names no activation, as those trainers do."""
    keys = [*(key for keys in _NOT_READ.values() for key in keys), *_SWITCHED_OFF, ".".join(_FIRST_INPUTS),
            ".".join(_NUM_LEVELS)]  # fmt: skip
    of_theirs = [one for one in settings if any(_is_below(one, key) for key in keys)]
    of_theirs += [one for one in settings if one.path == _LEAST_ICE and one.value is not None]
    paths = {one.path for one in settings}
    if not of_theirs or _DEPTH not in paths or paths & {_ACTIVATION, _NAME}:
        return (), ()
    why = f"implied by {of_theirs[0].key}, a key of emulators' trainers; set it to choose"
    notice = f"{'.'.join(_ACTIVATION)}={show_value('gelu')}: {why}"
    return (replace(of_theirs[0], path=_ACTIVATION, value="gelu"),), (notice,)
