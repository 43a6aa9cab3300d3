"""The public functions of the package.

`train`, `ensemble` and `predict` run the command of the same name in new processes, or on the ranks of a launcher;
`open` and `load_config` start nothing. Torch, MPI and numpy are loaded only when a function runs.
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
# Settings other than the training data that may be data in memory.
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
    data : xarray.Dataset, xarray.DataArray, pandas.DataFrame, dict of arrays, path or list of paths, optional
        The samples. A dict contains one array per variable, with equal first dimensions; a path may be a pattern.
        Default: the files named in the settings, or a synthetic CICE history if the settings name none.
    inputs : sequence of str, optional
        Names of the input variables, in order. Default: ``variables.input_variables`` of the settings.
    targets : sequence of str, optional
        Names of the variables to predict. Default: ``variables.output_variables`` of the settings.
    settings : path or mapping, optional
        A YAML file of settings, or a mapping of the same content. Default: none; with `resume`, those of the run.
    output : path, optional
        The run folder. Default: ``output.model_dir`` of the settings, otherwise ``mpitrain_run``.
    epochs : int, optional
        Number of passes over the training samples. Default: ``training.epochs`` of the settings; if not set, it
        depends on the number of samples, or is 20 for sea ice concentration and in ``reference`` semantics.
    ranks : int, optional
        Number of ranks that mpirun starts on this machine. Default: one process without mpirun. Not allowed in a
        script started by mpirun or srun.
    resume : bool
        Continue the run in the folder from its newest checkpoint. Not allowed together with `overwrite`.
    overwrite : bool
        Replace the run in the folder. By default a folder that contains a run raises an error.
    take_over : bool
        Use a folder that another launch has claimed if that launch is not known to be running. By default such a
        folder raises an error, unless that launch is known to have ended.
    trust_code : bool
        Run the code that a run folder names, also if you have not trained it.
    quiet : bool
        Do not print the output of the run. No effect in a script started by mpirun or srun.
    **more
        Single settings, such as ``lr=0.01`` or ``**{"training.optimizer.type": "sgd"}``. They take precedence over
        `settings`; a value of None is ignored. ``data.validation_path`` and ``data.test_path`` may be data in memory;
        ``model`` may be a torch.nn.Module, and training starts from its weights.

    Returns
    -------
    Run
        The run in its folder.

    Raises
    ------
    ConfigError
        Settings are wrong, or the data lack a variable.
    UserError
        The data, the run folder, a checkpoint or an argument cannot be used.
    mpitrain.errors.LaunchError
        The ranks cannot start, cannot communicate, or do not support the settings.
    mpitrain.errors.TrainingError
        A loss or a prediction is not finite, the user's own code failed, or the weights differ between ranks.
    mpitrain.errors.StoppedError
        The run stopped at ``training.max_steps`` or on a signal, with a checkpoint.
    KeyboardInterrupt
        The call was interrupted. The run stops after the current step, with a checkpoint; after a second interrupt
        it stops at once.

    Notes
    -----
    Collective in a script started by mpirun or srun: all ranks must call it with the same arguments. Errors that all
    ranks detect together are raised on all of them; any other error of one rank ends the job.

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
    """Train many networks and return the ensemble in its folder. Raises the same exceptions as `train`.

    Parameters
    ----------
    members : int, optional
        Number of networks with different seeds, each combined with all settings and folds of the section
        ``ensemble``. Default: ``ensemble.members`` of the settings, otherwise 1.
    output : path, optional
        The folder of the ensemble. Default: ``output.model_dir`` of the settings, otherwise ``mpitrain_ensemble``.
    resume : bool
        Train the members that the folder lacks, including added ones. Not allowed together with `overwrite`.
    overwrite : bool
        Replace the ensemble in the folder. By default a folder that contains a run or an ensemble raises an error.
    data, inputs, targets, settings, epochs, ranks, take_over, trust_code, quiet
        As for `train`.
    **more
        Single settings, as for `train`. Only ``data.validation_path`` may be data in memory, and ``model`` cannot be
        an object; give the class, as ``**{"model.name": "module:class"}``.

    Returns
    -------
    Run
        The ensemble. Its predictions are the mean over the members, and ``NAME_spread``.

    Raises
    ------
    mpitrain.errors.TrainingError
        No member was trained successfully. The error of a single member is listed in the table of the members.

    Notes
    -----
    Collective in a script started by mpirun or srun: all ranks must call it with the same arguments.

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
        Allow `Run.predict` and `Run.export` to run the code that the folder names, also if you have not trained it.

    Returns
    -------
    Run
        Its files are read when an attribute needs them.

    Raises
    ------
    UserError
        The folder does not contain a run.
    """
    return Run(Path(run), trust_code).checked()


def predict(run: str | os.PathLike[str], data: Any, **options: Any) -> Any:
    """Return the predictions of the run in a folder for `data`.

    Parameters
    ----------
    run : path
        The folder of a run or an ensemble.
    data : any kind of data that `train` reads, or None
        The data; None: the data files of the run.
    **options
        Other arguments of `Run.predict`.

    Returns
    -------
    xarray.Dataset or pandas.DataFrame
        As for `Run.predict`.

    Raises
    ------
    UserError
        The folder does not contain a run, or for the reasons of `Run.predict`.

    Notes
    -----
    Collective in a script started by mpirun or srun: all ranks must call it with the same arguments.
    """
    return open(run).predict(data, **options)


def load_config(settings: Settings | None = None, **more: Any) -> RunConfig:
    """Check settings and return them with all defaults, without training.

    Parameters
    ----------
    settings : path or mapping, optional
        A YAML file of settings, or a mapping of the same content. Default: the defaults of all settings.
    **more
        Single settings, as for `train`. They take precedence over `settings`; a value of None is ignored.

    Returns
    -------
    mpitrain.config.RunConfig
        One attribute per section, as in ``load_config().training.epochs``.

    Raises
    ------
    ConfigError
        A key is unknown, or a value is not allowed.
    mpitrain.errors.LaunchError
        ``compute.backend`` does not support ``reference`` semantics.

    Notes
    -----
    Not collective. Code named by the settings is not imported. Defaults that `train` derives from the number of
    samples, such as ``training.epochs``, are those that hold for an unknown number.
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
    from mpitrain.python.given_network import is_network, network_as_files
    from mpitrain.python.handover import handed_over
    from mpitrain.python.left_behind import left_behind
    from mpitrain.python.process import run_command
    from mpitrain.python.settings import data_override, is_plain, needed_variables, to_overrides

    other_data = {key: named[key] for key in _DATA_BESIDE[command] if not is_plain(named.get(key))}
    model = named.get("model") if is_network(named.get("model")) else None
    if model is not None and command == "ensemble":
        raise UserError("model: each member has its own initial weights; give the class, as model.name=module:class")
    removed = {**dict.fromkeys(other_data), **({} if model is None else {"model": None})}
    path, overrides = to_overrides(settings, {**named, **removed})
    data_of = {"data.data_path": data, **other_data}
    placeholders = [
        *overrides,
        *(override for key, one in data_of.items() if one is not None for override in data_override(["data"], key)),
    ]
    # Wrong settings raise here, before data are copied; placeholders stand for the files that are written below.
    folder, asked = load_run_config(path, placeholders).config.output.model_dir, needed_variables(path, placeholders)
    if command == "ensemble" and folder == DEFAULT_FOLDERS["train"]:
        folder = DEFAULT_FOLDERS[command]
    arguments = [*([str(path)] if path else []), *overrides, *to_overrides(None, {"output": folder})[1], *flags]
    with left_behind() as left, ExitStack() as stack:
        for key, one in data_of.items():
            files = stack.enter_context(handed_over(one, Path(folder), left, asked, key))
            arguments += data_override(files, key)
        if model is not None:
            is_resumed = "--resume" in flags
            arguments += stack.enter_context(network_as_files(model, Path(folder), overrides, is_resumed, left))
        run_command(command, arguments, left, ranks, quiet)
    return Run(Path(folder), "--trust-code" in flags)
