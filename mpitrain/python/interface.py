"""The public functions. Each starts the command of the same name, or joins the ranks that a launcher has started.

Nothing heavy is loaded before a function runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpitrain.errors import UserError
from mpitrain.python.run import Run

if TYPE_CHECKING:
    from mpitrain.config import RunConfig

Settings = str | os.PathLike[str] | Mapping[str, Any]
# Settings that may be data in memory, beside the data that are trained on.
_DATA_BESIDE = {"train": ("data.validation_path", "data.test_path"), "ensemble": ("data.validation_path",)}
DEFAULT_FOLDERS = {"train": "mpitrain_run", "ensemble": "mpitrain_ensemble"}


def train(
    data: Any = None, *, inputs: Sequence[str] | None = None, targets: Sequence[str] | None = None,
    settings: Settings | None = None, output: str | os.PathLike[str] | None = None, epochs: int | None = None,
    ranks: int | None = None, resume: bool = False, overwrite: bool = False, take_over: bool = False,
    trust_code: bool = False, quiet: bool = False, **more: Any,
) -> Run:  # fmt: skip
    """Train one network and return its run.

    Parameters
    ----------
    data : xarray.Dataset, pandas.DataFrame, dict of arrays, path or list of paths, optional
        The samples. Arrays of a dict are one variable each and have equal first dimensions; a path may be a pattern.
        Default: the files that `settings` name.
    inputs, targets : sequence of str, optional
        Names of the input and output variables.
    settings : path or mapping, optional
        A YAML file of settings, or a mapping of the same content.
    output : path, optional
        The run folder. Default: ``mpitrain_run``.
    epochs : int, optional
        Number of passes over the training samples.
    ranks : int, optional
        Number of ranks that mpirun starts on this machine. Default: one process without mpirun.
    resume, overwrite, take_over : bool
        Continue the run in the folder, or replace it; use the folder of a launch elsewhere that is over. By default a
        folder that holds a run, or that another launch has claimed, is refused.
    trust_code, quiet : bool
        Run the code that a run folder names, also where you have not trained it; print nothing.
    **more
        Settings, before `settings`: ``lr``, ``**{"training.optimizer.type": "sgd"}``. ``data.validation_path`` and
        ``data.test_path`` may be data in memory, ``model`` a torch.nn.Module: training begins at its weights.

    Returns
    -------
    Run
        The run in its folder.

    Raises
    ------
    ConfigError
        Settings are wrong, or the data lack a variable.
    UserError
        The data, the run folder or a checkpoint cannot be used.
    mpitrain.errors.LaunchError, mpitrain.errors.TrainingError, mpitrain.errors.StoppedError
        The launch is wrong, training failed, or it stopped at ``training.max_steps``.
    KeyboardInterrupt
        The cell was interrupted. The run stops after a whole step, with a checkpoint.

    Notes
    -----
    Collective in a script that mpirun or srun started: all ranks call it with the same arguments.

    Examples
    --------
    >>> run = mpitrain.train(ds, inputs=["sst", "u10"], targets=["flux"], epochs=20, output="run", ranks=4)
    >>> run.skill["flux"]["rmse"]
    """
    flags = _flags(resume=resume, overwrite=overwrite, take_over=take_over, trust_code=trust_code)
    named = {"inputs": inputs, "targets": targets, "output": output, "epochs": epochs, **more}
    return _run("train", data, settings, named, flags, ranks, quiet)


def ensemble(
    data: Any = None, *, members: int | None = None, inputs: Sequence[str] | None = None,
    targets: Sequence[str] | None = None, settings: Settings | None = None,
    output: str | os.PathLike[str] | None = None, epochs: int | None = None, ranks: int | None = None,
    resume: bool = False, overwrite: bool = False, take_over: bool = False, trust_code: bool = False,
    quiet: bool = False, **more: Any,
) -> Run:  # fmt: skip
    """Train many networks and return the ensemble in its folder.

    Parameters
    ----------
    members : int, optional
        Number of networks, which differ in their seeds. Default: what the section ``ensemble`` of the settings says.
    output : path, optional
        The folder of the ensemble. Default: ``mpitrain_ensemble``.
    data, inputs, targets, settings, epochs, ranks, resume, overwrite, take_over, trust_code, quiet, **more
        As for `train`, as are the errors.

    Returns
    -------
    Run
        Its predictions are the mean over members, and ``NAME_spread``.

    Examples
    --------
    >>> mpitrain.ensemble(ds, inputs=["sst"], targets=["flux"], members=16, output="members").predict(ds)
    """
    flags = _flags(resume=resume, overwrite=overwrite, take_over=take_over, trust_code=trust_code)
    named = {"inputs": inputs, "targets": targets, "output": output, "epochs": epochs, **more}
    if members is not None:
        named["ensemble.members"] = members
    return _run("ensemble", data, settings, named, flags, ranks, quiet)


def _flags(**given: bool) -> list[str]:
    return [f"--{name.replace('_', '-')}" for name, is_given in given.items() if is_given]


def open(run: str | os.PathLike[str], *, trust_code: bool = False) -> Run:
    """Return the run or the ensemble in a folder.

    Parameters
    ----------
    run : path
        The folder.
    trust_code : bool
        Let `Run.predict` and `Run.export` run the code that the folder names, also where you have not trained it.

    Returns
    -------
    Run

    Raises
    ------
    UserError
        The folder holds no run.
    """
    return Run(Path(run), trust_code).checked()


def predict(run: str | os.PathLike[str], data: Any, **options: Any) -> Any:
    """Return the predictions of the run in a folder for `data`.

    Parameters
    ----------
    run : path
        The folder of a run or an ensemble.
    data, **options
        As for `Run.predict`, as are result and errors.
    """
    return open(run).predict(data, **options)


def load_config(settings: Settings | None = None, **more: Any) -> RunConfig:
    """Check settings and return them with all defaults, without training.

    Parameters
    ----------
    settings : path or mapping, optional
        A YAML file of settings, or a mapping of the same content.
    **more
        Single settings, as for `train`. They take precedence over `settings`.

    Returns
    -------
    mpitrain.config.RunConfig
        One attribute a section, as in ``load_config().training.epochs``.

    Raises
    ------
    ConfigError
        A key is unknown, or a value is not allowed.
    """
    from mpitrain.config import load_run_config
    from mpitrain.python.settings import to_overrides

    path, overrides = to_overrides(settings, more)
    return load_run_config(path, overrides).config


def _run(
    command: str, data: Any, settings: Settings | None, named: Mapping[str, Any], flags: Sequence[str],
    ranks: int | None, quiet: bool,
) -> Run:  # fmt: skip
    from mpitrain.config import load_run_config
    from mpitrain.python.given_network import handed_over_network, is_network
    from mpitrain.python.handover import handed_over
    from mpitrain.python.left_behind import left_behind
    from mpitrain.python.process import run_command
    from mpitrain.python.settings import asked_by, data_override, is_plain, to_overrides

    beside = {key: named[key] for key in _DATA_BESIDE[command] if not is_plain(named.get(key))}
    model = named.get("model") if is_network(named.get("model")) else None
    if model is not None and command == "ensemble":
        raise UserError("model: members begin at weights of their own; give the class, as model.name=module:class")
    apart = {**dict.fromkeys(beside), **({} if model is None else {"model": None})}
    path, overrides = to_overrides(settings, {**named, **apart})
    data_of = {"data.data_path": data, **beside}
    held = [
        *overrides,
        *(word for key, one in data_of.items() if one is not None for word in data_override(["data"], key)),
    ]
    # Wrong settings end here.
    folder, asked = load_run_config(path, held).config.output.model_dir, asked_by(path, held)
    if command == "ensemble" and folder == DEFAULT_FOLDERS["train"]:
        folder = DEFAULT_FOLDERS[command]
    words = [*([str(path)] if path else []), *overrides, *to_overrides(None, {"output": folder})[1], *flags]
    with left_behind() as left, ExitStack() as stack:
        for key, one in data_of.items():
            files = stack.enter_context(handed_over(one, Path(folder), left, asked, key))
            words += data_override(files, key)
        if model is not None:
            is_resumed = "--resume" in flags
            words += stack.enter_context(handed_over_network(model, Path(folder), overrides, is_resumed, left))
        run_command(command, words, left, ranks, quiet)
    return Run(Path(folder), "--trust-code" in flags)
