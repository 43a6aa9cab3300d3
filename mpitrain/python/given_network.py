"""Passing of a network that is a Python object: its structure as text in the settings, its weights as a file.

The text is the pickled module without the values of its parameters. These are read from the file when training starts,
and later from the checkpoints of the run. The run folder is thus complete and can be moved.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import inspect
import json
import pickle
import sys
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from mpitrain.errors import UserError, reason_of
from mpitrain.python.handover import filled_folder, is_rank
from mpitrain.python.left_behind import LeftBehind

_NAME, _WEIGHTS = f"{__name__}:network", "weights.nc"
_FREE = ("model.output_transforms", "model.normalize_outputs")
_MOST_LETTERS = 100_000  # Linux limits a command-line argument to 128 KiB


def is_network(value: Any) -> bool:
    """Return whether a value is a torch.nn.Module, without loading torch. Raises UserError for a class of modules."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, type) and issubclass(value, torch.nn.Module):
        raise UserError(f"model: {value.__name__} is a class; give an object, as model={value.__name__}(3, 1)")
    return torch is not None and isinstance(value, torch.nn.Module)


def network(num_inputs: int, num_outputs: int, *, pickled: str, structure: str, code: str = "") -> Any:
    """Return the unpickled module, with all parameters 0; `num_inputs` and `num_outputs` are ignored.

    Its class must be importable unless it was pickled by cloudpickle. Raises the exceptions of unpickling.
    """
    module = pickle.loads(zlib.decompress(base64.b64decode(pickled)))  # noqa: S301  # called only for trusted run folders
    for parameter in module.parameters():
        parameter.data = parameter.data.clone()
    return module


@contextmanager
def network_as_files(
    model: Any, folder: Path, overrides: list[str], resume: bool, left: LeftBehind
) -> Iterator[list[str]]:  # fmt: skip
    """Yield the settings for a module during the block; an empty list if a run in `folder` is resumed with it.

    If this process is one of several ranks, this is collective and the root's module is used. Raises UserError for a
    module that cannot be pickled, for `overrides` of settings of the network that have no effect on a module, and if
    the resumed run has another network.
    """

    def describe() -> tuple[dict[str, str], bool]:
        try:
            shapes = [(name, tuple(one.shape)) for name, one in model.named_parameters()]
        except RuntimeError as error:
            raise UserError(f"model: has lazy layers ({reason_of(error)}); call it once first") from error
        _check(model)
        structure = hashlib.sha256(f"{model}{shapes}".encode()).hexdigest()
        options = {"structure": structure, "code": _code_of(model), "pickled": _pickled(model)}
        return options, resume and _goes_on_with(options, folder)

    for override in overrides:
        key = override.partition("=")[0]
        if key.startswith("model.") and key not in _FREE:
            raise UserError(f"{key}: has no effect on a network that is an object; leave it out")
    if is_rank():
        from mpitrain.python.together import on_root

        options, goes_on = on_root(describe)
    else:
        options, goes_on = describe()
    if goes_on:
        yield []
        return
    size = sum(parameter.nbytes for parameter in model.parameters())
    write = partial(_write_weights, model)
    with filled_folder(size, folder, left, write, is_read_everywhere=True) as place:  # the root's weights
        settings = f"model.options={json.dumps(options)}", f"model.initial_weights={place / _WEIGHTS}"
        yield [f"model.name={_NAME}", *settings]


def _check(model: Any) -> None:
    """Raise UserError for a module whose parameters cannot be written to a file."""
    if any(hasattr(one, "_orig_mod") for one in model.modules()):
        raise UserError("model: was compiled by torch.compile; give the original module")
    for name, one in model.named_parameters():
        if str(one.layout) != "torch.strided" or one.element_size() < 2:
            raise UserError(
                f"model: its parameter {name} is {one.dtype}, {one.layout}; give dense parameters of 16 bits or more"
            )
        wrong = "is on the meta device, without values" if one.is_meta else "is complex" if one.is_complex() else ""
        wrong = wrong or ("has a name with a slash" if "/" in name else "")
        if wrong or not one.isfinite().all():
            raise UserError(
                f"model: its parameter {name} {wrong or 'holds a value that is not finite'}; correct it first"
            )


def _goes_on_with(options: dict[str, str], folder: Path) -> bool:
    """Return whether the folder contains a run with checkpoints. Raises UserError if it has another network."""
    from mpitrain.config import load_run_config
    from mpitrain.train import CheckpointStore

    path = folder / "config.yaml"
    if not path.is_file() or not CheckpointStore(folder / "checkpoints").holds_any():
        return False
    found = load_run_config(path).config.model
    if found.name != _NAME or found.options.get("structure") != options["structure"]:
        raise UserError(f"{folder}: holds a run of another network than model; leave out resume, or model")
    before, now = (one.get("code") for one in (found.options, options))
    if before and now and before != now:
        warnings.warn(
            f"model: its code has changed since the run in {folder} started; a class in a file is used as it is now, "
            "a class defined in this session as it was then; leave out resume to start a new run", stacklevel=2,
        )  # fmt: skip
    return True


def _code_of(model: Any) -> str:
    """Return a digest of the source code of the user's own classes, or "" if the source of one is not available."""
    bases = (base for one in model.modules() for base in type(one).__mro__)
    classes = dict.fromkeys(one for one in bases if one.__module__.partition(".")[0] not in ("torch", "builtins"))
    try:
        return hashlib.sha256("".join(map(inspect.getsource, classes)).encode()).hexdigest()
    except (OSError, TypeError):
        return ""


def _write_weights(model: Any, folder: Path) -> None:
    import netCDF4

    with netCDF4.Dataset(str(folder / _WEIGHTS), "w") as file:
        for number, (name, parameter) in enumerate(model.named_parameters()):
            values = parameter.detach().cpu()
            values = values.double() if values.element_size() == 8 else values.float()
            axes = [file.createDimension(f"{number}_{axis}", size).name for axis, size in enumerate(values.shape)]
            file.createVariable(f"network.{name}", values.numpy().dtype, axes)[...] = values.numpy()


def _pickled(model: Any) -> str:
    """Return the pickled module without its parameters' values as text; cloudpickle, if installed, includes classes."""
    try:
        import cloudpickle
    except ImportError:
        own = next((type(one).__name__ for one in model.modules() if type(one).__module__ == "__main__"), None)
        if own is not None:
            raise UserError(
                f"model: {own} is defined in this session, other processes cannot import it; move it to a file in the "
                "current directory and import it from there, or: python -m pip install cloudpickle"
            ) from None
        cloudpickle = pickle
    try:
        empty = copy.deepcopy(model).cpu()
        for parameter in empty.parameters():
            parameter.data = parameter.data.new_zeros(()).expand(parameter.shape)  # a single stored value
        text = base64.b64encode(zlib.compress(cloudpickle.dumps(empty))).decode()
    except Exception as error:
        raise UserError(f"model: cannot be pickled ({error}); give its class, as model.name=module:class") from error
    if len(text) > _MOST_LETTERS:
        raise UserError(
            f"model: pickled without its parameters it has {len(text):,} characters, {_MOST_LETTERS:,} are allowed; "
            "store less in buffers, or give its class, as model.name=module:class"
        )
    return text
