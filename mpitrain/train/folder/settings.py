"""Loading of settings from run folders: they are resolved, then checked for code and output files that they name.

A run folder may come from anyone. Its settings may name code (`model.name: package.module:callable`), which would be
imported to build the network, and files to write. Both are accepted only from the user: on the command line, or in a
settings file that the user passes and that does not belong to a run folder. All settings of run folders are read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpitrain.config import (
    LoadedConfig,
    RunConfig,
    load_run_config,
    load_settings_tree,
    overridden_keys,
    show_value,
)
from mpitrain.config.yaml import quoted
from mpitrain.errors import ConfigError, UserError
from mpitrain.observe.trackers.tracker import flat
from mpitrain.train.folder.known_code import distrust_reason, remember_code
from mpitrain.train.run_folder import RunFolder, refuse_link
from mpitrain.train.torchs_own import is_torch_class

_CALLABLE = re.compile(r"\s*[\w.]+\s*:\s*[\w.]+\s*")
# Settings that name a file or folder to write; null means the run folder.
_OUTPUT_KEYS = ("output.model_file", "prediction.output_filename", "tracking.mlflow_uri")


def load_folder_settings(folder: RunFolder, trust_code: bool, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Return the settings of the run in `folder`, changed by the user's `overrides`.

    Parameters
    ----------
    folder : RunFolder
        The folder of a run, perhaps from another user.
    trust_code : bool
        Accept code that the folder's settings name; see `refuse_code`.
    overrides : sequence of str, default ()
        `KEY=VALUE` each, such as `training.epochs=50`.

    Returns
    -------
    LoadedConfig
        The settings, with the defaults of earlier versions for keys that the file does not state, and notices.

    Raises
    ------
    ConfigError
        The file is missing, or the settings or an override are invalid.
    UserError
        The settings name code that is not trusted.
    LaunchError
        The settings name a backend that their semantics cannot run on.

    Notes
    -----
    Not collective.
    """
    loaded = load_run_config(folder.config, overrides)
    refuse_code(folder.config, loaded.config, trust_code, overrides)
    return replace(loaded, config=loaded.config.as_recorded())


def with_recorded_rules(loaded: LoadedConfig, path: Path | None) -> LoadedConfig:
    """Return the settings with the defaults of the run that wrote the file, perhaps by an earlier version.

    Parameters
    ----------
    loaded : LoadedConfig
        The settings that were read from the file.
    path : Path or None
        The file; None if the settings come from no file.

    Returns
    -------
    LoadedConfig
        If the file is the `config.yaml` of a run folder: with the first version of `data.rules`, without test samples
        and without an average of the weights, unless the file states these settings. Otherwise `loaded` itself.
    """
    if path is None or not _holds_run(path):
        return loaded
    return replace(loaded, config=loaded.config.as_recorded())


def load_settings_to_resume(folder: RunFolder, trust_code: bool, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Return the settings of the run in `folder` for a command that writes into that folder.

    `output.model_dir` is the folder itself, unless the overrides name another one. Raises as `load_folder_settings`,
    and UserError if the folder's own settings name an output file outside the folder.
    """
    if "output.model_dir" not in overridden_keys(overrides):
        overrides = (*overrides, f"output.model_dir={quoted(str(folder.path))}")  # the folder may have been moved
    if folder.first_weights.is_file() and "model.initial_weights" not in overridden_keys(overrides):
        overrides = (*overrides, f"model.initial_weights={quoted(str(folder.first_weights))}")
    loaded = load_folder_settings(folder, trust_code, overrides)
    refuse_outputs_elsewhere(folder.config, loaded.config, overrides)
    return loaded


def load_passed_settings(path: Path | None, trust_code: bool, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Return the settings of the file that the user passes, changed by the overrides; without a file, only these.

    A file that belongs to a run folder is checked like the folder. Raises as `load_settings_to_resume`, and OutputError
    if it is a pipe, which reading might block on forever; a shell's `<(...)` does not belong to a folder.
    """
    loaded = load_settings_to_read(path, overrides, trust_code)
    if path is None or not _is_of_a_run(path.resolve()):
        return loaded
    refuse_outputs_elsewhere(path, loaded.config, overrides)
    is_here = Path(loaded.config.output.model_dir).resolve() == path.resolve().parent
    if not is_here and "output.model_dir" not in overridden_keys(overrides):
        raise UserError(
            f"{path}: output.model_dir={show_value(loaded.config.output.model_dir)} is not the folder of this file, "
            f"which belongs to a run; give --output FOLDER: {path.parent} if the run was moved there"
        )
    return with_recorded_rules(loaded, path)


def load_settings_to_read(path: Path | None, overrides: Sequence[str] = (), trust_code: bool = False) -> LoadedConfig:
    """Return the settings of the file for a command that writes no run folder. Raises as `load_passed_settings`.

    Code that a run folder's own file names is accepted if this user's training has written that file. A file beside a
    model, metrics or an ensemble's marker file, as earlier versions wrote them, is checked in the same way.
    """
    if path is not None and path.is_fifo() and path == RunFolder(path.parent).config:
        refuse_link(path)
    loaded = load_run_config(path, overrides)
    if path is not None and (_is_of_a_run(path.resolve()) or _lies_beside_results(path.resolve())):
        refuse_code(path, loaded.config, trusts_code_of(path.resolve(), trust_code), overrides)
    return loaded


def _lies_beside_results(path: Path) -> bool:
    names = "model.pt", "metrics.jsonl", "ensemble.json"
    return path == RunFolder(path.parent).config and any((path.parent / name).exists() for name in names)


def _is_of_a_run(path: Path) -> bool:
    """Return whether the settings file is the one that a run or an ensemble wrote into its folder."""
    if path != RunFolder(path.parent).config:
        return False
    return _holds_run(path) or Path(load_run_config(path).config.output.model_dir).resolve() == path.parent


def _holds_run(path: Path) -> bool:
    path = path.resolve()
    folder = RunFolder(path.parent)
    parts = folder.record, folder.checkpoints, folder.own_model, path.parent / "members"
    return path == folder.config and any(one.exists() for one in parts)


def settings_of_record(path: Path, tree: Mapping[str, Any], trust_code: bool) -> RunConfig:
    """Return the settings that a run's record holds.

    Parameters
    ----------
    path : Path
        The file of the record, for messages.
    tree : mapping of str to object
        The settings in it: nested mappings of sections and keys.
    trust_code : bool
        Accept code that the settings name; see `refuse_code`.

    Returns
    -------
    RunConfig
        With the defaults of earlier versions for keys that the record does not state.

    Raises
    ------
    ConfigError, UserError, LaunchError
        As `load_folder_settings`.
    """
    config = load_settings_tree(tree, str(path)).config
    refuse_code(path, config, trust_code)
    return config.as_recorded()


def refuse_code(source: Path, config: RunConfig, trust_code: bool, overrides: Sequence[str] = ()) -> None:
    """Raise UserError if settings name code that the user has neither named nor trusted.

    Parameters
    ----------
    source : Path
        The file of the settings, for the message.
    config : RunConfig
        Resolved settings. Also the varied settings of an ensemble are checked.
    trust_code : bool
        If True, nothing is checked.
    overrides : sequence of str, default ()
        The user's `KEY=VALUE` arguments. Code that they name is accepted; for a class of this package only if they also
        state its options, which may name code.

    Raises
    ------
    UserError
        A key names code that is neither in `overrides` nor a class that torch defines.

    Notes
    -----
    Not collective. Imports nothing that the settings name.
    """
    if trust_code:
        return
    given = overridden_keys(overrides)
    for key, value in code_in(config):
        # The package's own classes may run code that their options name: the user must give both.
        options_key = f"{key.removesuffix('.type').removesuffix('.name')}.options"
        is_given = _is_given(key, given) and (not value.startswith("mpitrain.") or _is_given(options_key, given))
        if not is_given and not is_torch_class(value):
            doubt = distrust_reason(source)
            raise UserError(
                f"{source}: {key}={show_value(value)} names code, which would be run; give --trust-code if you trust "
                f"its source{f' ({doubt})' if doubt else ''}"
            )


def remember_code_of(named: Iterable[tuple[str, str]], files: Iterable[Path]) -> None:
    """Record that the user trains with the code in these files, so that it is trusted later.

    Parameters
    ----------
    named : iterable of (str, str)
        Key and value of each setting that names code, from `code_in` or `RunConfig.code_names`. torch's own classes are
        left out.
    files : iterable of Path
        Settings and model files that name the code; files that do not exist are left out.

    Notes
    -----
    Call it on the root only. Does nothing if no code is named, if a module has no file, or if the record in the user's
    configuration cannot be written.
    """
    names = [value for _, value in named if not is_torch_class(value)]
    if names:
        remember_code([one for one in files if one.is_file()], names)


def trusts_code_of(place: Path, trust_code: bool) -> bool:
    """Return whether code that a run or an ensemble names may be run.

    Parameters
    ----------
    place : Path
        The folder of the run or ensemble, or a file there.
    trust_code : bool
        The user's `--trust-code`; if True the result is True.

    Returns
    -------
    bool
        For a file: whether the user's own training has written it. For a folder: whether it has written all files that
        can name code, settings and models, including those of an ensemble's members.

    Raises
    ------
    ConfigError
        The settings of a trusted folder cannot be read.

    Notes
    -----
    Not collective: the root calls it and decides for all ranks. Files are not trusted if they have changed since the
    training, belong to others or can be written by everybody, or if the training was in another working directory.
    """
    if trust_code or not place.is_dir():
        return trust_code or (place.is_file() and distrust_reason(place) is None)
    config = RunFolder(place).config
    if not config.is_file() or distrust_reason(config) is not None:
        return False
    model_file = load_run_config(config).config.output.model_file
    # The model.pt of an ensemble consists of its members' networks and is not read from the ensemble's folder.
    run = RunFolder(place, model_file)
    own = [run.own_model if (place / "ensemble.json").is_file() else run.stored_model]
    members = [RunFolder(one, model_file) for one in (place / "members").glob("*")]
    files = [*own, *(file for one in members for file in (one.config, one.stored_model))]
    return all(distrust_reason(file) is None for file in files if file.is_file())


def refuse_outputs_elsewhere(source: Path, config: RunConfig, overrides: Sequence[str] = ()) -> None:
    """Raise UserError if settings of `source` name an output other than a plain file name in the run folder."""
    values, given = dict(flat(config.model_dump(), ".")), overridden_keys(overrides)
    for key in _OUTPUT_KEYS:
        value = values[key]
        is_inside = value is None or (key == "output.model_file" and is_plain_name(value))
        if not is_inside and key not in given:
            raise UserError(
                f"{source}: {key}={show_value(value)} would be written outside the run folder; if you want that, "
                f"give {key}=... on the command line"
            )


def code_in(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield key and value of each resolved setting that names code, including an ensemble's varied settings."""
    yield from config.code_names.items()
    varied = {} if config.ensemble is None else config.ensemble.model_dump()
    for kind in ("grid", "random"):
        for key, value in varied.get(kind, {}).items():
            yield from ((f"ensemble.{kind}.{key}", text) for text in _texts(value) if _CALLABLE.fullmatch(text))


def is_plain_name(text: str) -> bool:
    """Return whether a text is the name of a file directly in a folder, without any path.

    Parameters
    ----------
    text : str

    Returns
    -------
    bool
        False for "", ".", "..", and for names with a slash, a backslash or a null character.
    """
    return text not in ("", ".", "..") and "/" not in text and "\\" not in text and "\0" not in text


def plain_name(text: object, source: Path) -> str:
    """Return `text`, which `source` gives as the name of a file or folder beside it. Raises ConfigError if a path."""
    if not isinstance(text, str) or not is_plain_name(text):
        raise ConfigError(f"{source}: {show_value(text)} is not a plain name; the file is damaged, write it again")
    return text


def _is_given(key: str, given: frozenset[str]) -> bool:
    # `key.type` is another spelling of a component's `key`.
    return any(one in (key, f"{key}.type") or key.startswith(f"{one}.") for one in given)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(one)
