"""Translation of keys of other trainers and of the C++ program to current keys; a setting given twice is an error."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import NoReturn

from mpitrain.config.ensemble import EnsembleSection
from mpitrain.config.older.synonyms import INSTEAD, SAME, SECTIONS
from mpitrain.config.run import RunConfig, rooms
from mpitrain.config.section import Section
from mpitrain.config.yaml import KeyPath, Setting, show_value
from mpitrain.errors import ConfigError

SEMANTICS: KeyPath = ("semantics",)
# The sections whose keys other trainers' files may contain without a section; `name` is excluded, it is ambiguous.
_FLAT_IN_OTHER_FILES = "variables", "domain", "data", "model", "training", "compute", "distributed"
_OF_NO_SECTION = "name"
UNUSED_BATCH_SIZE: KeyPath = ("training", "batch size")
USE_CUDA: KeyPath = ("use_cuda",)
POLE: KeyPath = ("domain", "pole")
_WRITTEN_BY_ALL_RUNS = {("domain", "mask_mode"), ("data", "samples"), ("model", "hidden_size"), ("output", "model_dir")}
BACKEND: KeyPath = ("compute", "backend")
WARM_UP: KeyPath = ("training", "scheduler", "warmup_epochs")
SCHEDULER_TYPE: KeyPath = ("training", "scheduler", "type")
# Keys of the C++ program, with spaces: a file that contains one implies `semantics: reference`.
CPP_KEYS: dict[KeyPath, KeyPath] = {
    ("ffnn", "inputSize"): ("model", "input_size"),
    ("ffnn", "outputSize"): ("model", "output_size"),
    ("ffnn", "hiddenSize"): ("model", "hidden_size"),
    ("ffnn", "load model"): ("model", "initial_weights"),
    ("training", "cice history"): ("data", "data_path"),
    ("training", "model output"): ("output", "model_file"),
    UNUSED_BATCH_SIZE: UNUSED_BATCH_SIZE,
    ("domain", "clean data"): ("domain", "clean_data"),
    ("prediction", "cice history"): ("prediction", "cice_history"),
    ("prediction", "output filename"): ("prediction", "output_filename"),
}

HALVING: KeyPath = ("ensemble", "halving")
_OF_HALVING: dict[KeyPath, int | None] = {
    HALVING: None, ("ensemble", "first_epochs"): 1, ("ensemble", "halving_block"): None,
}  # fmt: skip
_HAS_GONE = "was removed: all settings are trained to the end; `mpitrain help ensembles` shows how to stop some early"
# Keys that are accepted and ignored, with the reason; earlier versions wrote all keys of the ensemble to its folder.
_UNUSED: dict[KeyPath, str] = {
    UNUSED_BATCH_SIZE: "ignored, as in the C++ program: each epoch is one full-batch step",
    **dict.fromkeys(_OF_HALVING, _HAS_GONE),
}
_ASKS_FOR_NOTHING = tuple(_OF_HALVING.items())

OLDER_KEYS: dict[KeyPath, KeyPath] = {
    USE_CUDA: ("compute", "device"),
    **{tuple(older.split(".")): tuple(today.split(".")) for older, today in SAME.items()},
}


def to_current_spelling(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """Return the settings with current keys. Raises ConfigError for a value that cannot be translated."""
    return tuple(_respelled(setting) for setting in settings)


def current_path(path: KeyPath) -> KeyPath:
    """Return the current key for a key in any spelling."""
    modern = _modern_section(path)
    return CPP_KEYS.get(modern) or OLDER_KEYS.get(modern) or _keys_without_section().get(modern) or modern


def key_of_name(name: str) -> KeyPath:
    """Return the current key for a name without a section, ours or another trainer's; () if it is not one key."""
    path, sections = current_path((name,)), _sections()
    is_section = isinstance(sections.get(path[0]), Section)
    return path if is_section == (len(path) > 1) and path[0] in sections else ()


@cache
def _sections() -> dict[str, object]:
    """Return the sections and the top-level keys, with their defaults."""
    return {**dict(RunConfig()), "ensemble": EnsembleSection()}


def is_true_or_false(key: str) -> bool:
    """Return whether a dotted key is a boolean."""
    *sections, name = key.split(".")
    section = _sections().get(sections[0]) if sections else None
    for one in sections[1:]:
        section = getattr(section, one, None)
    field = getattr(type(section), "model_fields", {}).get(name)
    return field is not None and field.annotation in (bool, bool | None)


@cache
def _keys_without_section() -> dict[KeyPath, KeyPath]:
    """Return the full key by name for names in exactly one section: other trainers' flat files have no sections."""
    sections = _sections()
    keys = [(name, key) for name, section in sections.items() for key in getattr(type(section), "model_fields", ())]
    names = Counter(key for _, key in keys)
    no_keys = {*sections, *SECTIONS, *INSTEAD, _OF_NO_SECTION}
    return {
        (key,): (section, key)
        for section, key in keys
        if section in _FLAT_IN_OTHER_FILES and names[key] == 1 and key not in no_keys
    }


def replaced_by(key: KeyPath, settings: Sequence[Setting]) -> set[KeyPath]:
    """Return the keys that are replaced by an override of `key` that sets `settings`."""
    whole = current_path(key)
    # `training.optimizer=adam` sets only the type: the learning rate of the file is kept.
    is_named_by_text = [(one.path, one.spelled) for one in settings] == [(_names_by_component().get(whole), key)]
    return {setting.path for setting in settings} | (set() if is_named_by_text else {whole})


@cache
def _names_by_component() -> dict[KeyPath, KeyPath]:
    """Return the key of the name of each component, by its key: `optimizer: adam` means `optimizer: {type: adam}`."""
    return {tuple(room.key.split(".")): (*room.key.split("."), room.name_field) for room in rooms()}


def options_of_others(file: Sequence[Setting], override: Sequence[Setting]) -> set[KeyPath]:
    """Return the keys of `options` in the file that belong to other code than the override names."""
    names = {setting.path: setting.value for setting in override if setting.path in _names_by_component().values()}
    named = {setting.path: setting.value for setting in file}
    return {(*path[:-1], "options") for path, name in names.items() if name != named.get(path, name)}


def overlap(one: KeyPath, other: KeyPath) -> bool:
    """Return whether two keys are equal, or one is a section that contains the other."""
    shared = min(len(one), len(other))
    return one[:shared] == other[:shared]


def without_default_pole(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """Return the settings without `domain.pole: north` if an earlier version wrote it as a default.

    Those versions wrote all keys of a run to its folder, and this key had no effect with `domain.mask_mode` or with
    files other than CICE histories. They are recognised by the missing `data.coordinates`.
    """
    paths = {setting.path[:2] for setting in settings}
    is_earlier = paths.issuperset(_WRITTEN_BY_ALL_RUNS) and ("data", "coordinates") not in paths
    return tuple(one for one in settings if not (is_earlier and (one.path, one.value) == (POLE, "north")))


def refuse_given_twice(settings: Sequence[Setting]) -> None:
    """Raise ConfigError if a file contains the same setting in two spellings."""
    for one, other in combinations(settings, 2):
        if overlap(one.path, other.path):
            earlier, later = sorted((one, other), key=lambda setting: setting.lines[-1])
            first = f"{earlier.key} at line {earlier.lines[-1]}"
            raise ConfigError(f"{later.where}: {later.key}: the same setting as {first}; keep one of them")


def without_unused(settings: Sequence[Setting]) -> tuple[tuple[Setting, ...], tuple[str, ...]]:
    """Return the settings without the ignored ones, and a notice for each of these, except former defaults."""
    kept = tuple(setting for setting in settings if setting.path not in _UNUSED)
    dropped = (one for one in settings if one.path in _UNUSED and (one.path, one.value) not in _ASKS_FOR_NOTHING)
    return kept, tuple(f"{one.key}={show_value(one.value)}: {_UNUSED[one.path]}" for one in dropped)


def implied_semantics(settings: Sequence[Setting]) -> tuple[tuple[Setting, ...], tuple[str, ...]]:
    """Return `semantics: reference` and its notice if a key of the C++ program is used without `semantics`."""
    cpp = [setting for setting in settings if _modern_section(setting.spelled) in CPP_KEYS]
    if not cpp or any(setting.path[:1] == SEMANTICS for setting in settings):
        return (), ()
    notice = f"semantics=reference: implied by {cpp[0].key}, a key of the C++ program; set semantics to choose"
    return (replace(cpp[0], path=SEMANTICS, value="reference"),), (notice,)


def implied_scheduler(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """Return `training.scheduler.type: none` if another trainer's `warmup_epochs` is given without a schedule."""
    warm_up = [setting for setting in settings if setting.path == WARM_UP and setting.spelled[-2:] != WARM_UP[-2:]]
    if not warm_up or any(setting.path == SCHEDULER_TYPE for setting in settings):
        return ()
    return (replace(warm_up[0], path=SCHEDULER_TYPE, value="none"),)


def _modern_section(path: KeyPath) -> KeyPath:
    # Also for the section itself: `scheduler: null`.
    return (*SECTIONS[path[0]].split("."), *path[1:]) if path[0] in SECTIONS else path


def _respelled(setting: Setting) -> Setting:
    path = _modern_section(setting.path)
    if path[0] == "ffnn" and path not in CPP_KEYS:
        _refuse_unknown(setting)
    today, value = current_path(path), _converted(path, setting)
    if today in _names_by_component() and isinstance(value, str):
        return replace(setting, path=_names_by_component()[today], value=value if ":" in value else value.lower())
    return replace(setting, path=today, value=value)


def _converted(path: KeyPath, setting: Setting) -> object:
    if path == USE_CUDA:
        if not isinstance(setting.value, bool):
            where, key = setting.where, setting.key
            raise ConfigError(f"{where}: {key}: {show_value(setting.value)} is not allowed; give true or false")
        return "auto" if setting.value else "cpu"
    # Older files with backend nccl must still run without a GPU.
    is_older_backend = path != BACKEND and current_path(path) == BACKEND
    return "nccl_if_available" if is_older_backend and setting.value == "nccl" else setting.value


def _refuse_unknown(setting: Setting) -> NoReturn:
    names = [path[1] for path in CPP_KEYS if path[0] == "ffnn"]
    near = difflib.get_close_matches(setting.path[-1], names, n=1)
    advice = f"did you mean '{near[0]}'?" if near else f"allowed: {', '.join(names)}"
    raise ConfigError(f"{setting.where}: {setting.key}: unknown key; {advice}")
