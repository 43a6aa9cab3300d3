"""TorchScript files, which C++ loads. Only this module writes them, and only this module can run them.

`model.pt` holds a whole model: the C++ `torch::jit::load` runs it, and the original program's `torch::load` finds its
parameters and buffers by name. Besides `forward(inputs)` it has `jac(inputs)` for inputs (N, F) -> (N, O, F), the
statistics as buffers, and lists of text: input_names, target_names (and output_names), input_units, target_units. The
text `extra/mpitrain.json` describes the network: this package rebuilds the network from it and does not run the code in
the file.
`normalization.model.pt` holds two tensors named "0" (mean) and "1" (std).
"""

from __future__ import annotations

import copy
import dataclasses
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from mpitrain.durable_files import write_durably, write_whole
from mpitrain.errors import OutputError, one_line, writing
from mpitrain.models.batch_norm import make_exportable, to_exportable
from mpitrain.models.files.description import ModelDescription
from mpitrain.models.files.record import RECORD, NetworkRecord, record_of
from mpitrain.models.normalized import BlockNetwork, NormalizedModel

Result = TypeVar("Result")
_TRACED_ROWS, _OTHER_ROWS = 3, (1, 4)
_TRACED_FIELD = (16, 24)


def save_model(
    model: nn.Module,
    path: Path,
    description: ModelDescription | None = None,
    sample_inputs: torch.Tensor | None = None,
    may_change: bool = False,
) -> None:
    """Write a model as TorchScript, whole or not at all.

    Parameters
    ----------
    model : torch.nn.Module
        On any device; the file holds a copy on the CPU in evaluation mode, with outputs in physical units.
    path : Path
        The file; an existing one is replaced.
    description : ModelDescription, optional
        Names and units, stored as lists of text; empty by default.
    sample_inputs : Tensor, shape (b, F) or (b, F, H, W), optional
        A user's network that cannot be compiled is traced with inputs of this shape, for other b. By default the shapes
        (b, F) and then (b, F, 16, 24) are tried.
    may_change : bool, default False
        The model is not used afterwards: it is converted in place, which saves a copy.

    Raises
    ------
    OutputError
        The file cannot be written, or a user's network can be neither compiled nor traced.

    Notes
    -----
    Not collective. A trace on 3 rows is accepted only if it gives the same bits as the network for 1 and 4 rows. The
    archive of a model that was built from settings, in float32 or float64, holds the record `extra/mpitrain.json`, from
    which this package rebuilds a built-in network without running code. Only a user's network in a `NormalizedModel` is
    traced; for other models an exception of torch's compiler is passed on.
    """
    script_model(model, path, description, sample_inputs, may_change).write(model, path)


class ScriptedModel:
    """A compiled model, which can also write other models of the same architecture, description and dtypes."""

    def __init__(self, plain: nn.Module, scripted: torch.jit.ScriptModule) -> None:
        self._record, self._scripted = _record_of(plain), scripted

    def write(self, model: nn.Module, path: Path, waits_for_disk: bool = True) -> None:
        """Write `path` with the numbers of `model`, whole or not at all. Raises OutputError.

        If `waits_for_disk` is False, a power failure may damage the file, which `check_sums` detects.
        """
        _put(lambda: self._content(model), path, waits_for_disk)

    @torch.no_grad()
    def _content(self, model: nn.Module) -> bytes:
        _take_numbers(self._scripted, model)
        return _archive_of(self._scripted, self._record)


def script_model(
    model: nn.Module, path: Path, description: ModelDescription | None = None,
    sample_inputs: torch.Tensor | None = None, may_change: bool = False,
) -> ScriptedModel:  # fmt: skip
    """Compile `model` to TorchScript; error messages name `path`. Raises OutputError as `save_model`."""
    # A copy on the CPU in evaluation mode: the file must load on any machine.
    plain = make_exportable(model) if may_change else to_exportable(model)
    for name, values in dataclasses.asdict(description or ModelDescription()).items():
        setattr(plain, name, torch.jit.Attribute(list(values), list[str]))
    plain.output_names = plain.target_names  # the name that many consumers use
    return ScriptedModel(plain, _quietly(lambda: _compiled(plain, path, sample_inputs)))


@torch.no_grad()
def scripted_copies(networks: Sequence[nn.Module]) -> list[nn.Module]:
    """Return `networks`, all of one architecture and dtype, as TorchScript; compiles only the first, to save time."""
    first = _quietly(lambda: torch.jit.script(to_exportable(networks[0])))
    copies: list[nn.Module] = [copy.deepcopy(first) for _ in networks]
    for scripted, network in zip(copies, networks, strict=True):
        _take_numbers(scripted, network)
    return copies


def _take_numbers(scripted: nn.Module, model: nn.Module) -> None:
    targets = scripted.state_dict()
    numbers = _numbers_of(model, targets)
    for name, tensor in targets.items():
        tensor.copy_(numbers[name])


def _numbers_of(model: nn.Module, names: Collection[str]) -> dict[str, torch.Tensor]:
    """Return the model's parameters and buffers of these `names`, those in its archive, on the CPU."""
    numbers = model.state_dict()
    if numbers.keys() != set(names):  # some layers are stored in another form
        numbers = to_exportable(model).state_dict()
    passing = dict(model.named_buffers(remove_duplicate=False))  # traced code also contains buffers outside state_dict
    return {name: (numbers[name] if name in numbers else passing[name]).cpu() for name in names}


def write_script(
    model: nn.Module, path: Path, wrap: Callable[[nn.Module], nn.Module], sample_inputs: torch.Tensor
) -> None:
    """Write `wrap(model)` as TorchScript to `path`, whole or not at all. Raises OutputError as `save_model`."""
    network = _quietly(lambda: _compiled(to_exportable(model), path, sample_inputs))
    scripted = _quietly(lambda: torch.jit.script(wrap(network)))
    _put(lambda: _archive_of(scripted, None), path)


def check_saved(path: Path, model: nn.Module, sample_inputs: torch.Tensor) -> None:
    """Run the file `path`, which this process wrote, and compare its outputs with the model's.

    `sample_inputs` (b, F) or (b, F, H, W) are the inputs. Raises OutputError if the outputs differ in any bit or the
    file cannot be read.
    """
    inputs = sample_inputs.detach().cpu()
    try:
        with torch.no_grad():
            found, expected = load_and_run_code(path)(inputs), to_exportable(model)(inputs)
    except (OSError, RuntimeError, ValueError) as error:
        raise OutputError(f"{path}: cannot be used after writing ({_first_line(error)}); write it again") from error
    if found.dtype != expected.dtype or not torch.equal(found, expected):
        raise OutputError(f"{path}: its outputs differ from those of the model that was written; write it again")


def save_normalization(mean: torch.Tensor, std: torch.Tensor, model_path: Path) -> Path:
    """Write the normalisation file that the C++ program reads.

    Parameters
    ----------
    mean, std : Tensor, shape (F,)
        Statistics of the inputs in physical units; stored in their dtype as tensors "0" and "1".
    model_path : Path
        The path of the model.

    Returns
    -------
    Path
        The file written: `normalization.` and the model's file name, in the model's folder.

    Raises
    ------
    OutputError
        The file cannot be written.
    """
    path = normalization_path(model_path)
    scripted = _quietly(lambda: torch.jit.script(_TensorList([mean, std])))
    _put(lambda: _archive_of(scripted, None), path)
    return path


def normalization_path(model_path: Path) -> Path:
    """Return the path of the normalisation file, in the folder of the model."""
    return model_path.with_name(f"normalization.{model_path.name}")


def load_and_run_code(path: Path) -> torch.jit.ScriptModule:
    """Load a TorchScript file on the CPU. UNSAFE: loading alone runs the `__setstate__` in the file.

    Only for files that this process has written, or that the user trusts; use `files.archive.read_archive` for all
    others. Raises OSError, RuntimeError or ValueError if it is not a TorchScript file, or if a part does not match its
    checksum.
    """
    check_sums(path)
    model: torch.jit.ScriptModule = _quietly(lambda: torch.jit.load(str(path), map_location="cpu"))
    return model


def check_sums(path: Path) -> None:
    """Raise OSError or RuntimeError if `path` is not an archive, or if a part of it does not match its checksum."""
    # torch writes a checksum of each part, but does not verify it when it reads.
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, EOFError, struct.error) as error:
        raise RuntimeError(f"is not an archive ({error})") from error
    if damaged is not None:
        raise RuntimeError(f"'{damaged}' does not match its checksum")


class _TensorList(nn.Module):
    """Tensors named "0", "1", ..., as libtorch's archive names the members of a vector."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        for number, tensor in enumerate(tensors):
            self.register_buffer(str(number), tensor.detach().cpu().clone())


def _record_of(plain: nn.Module) -> NetworkRecord | None:
    state = plain.state_dict()
    mean, outputs = state.get("input_mean"), state.get("output_mean", state.get("fc2.bias"))
    return None if mean is None or outputs is None else record_of(plain, mean.numel(), outputs.numel(), mean.dtype)


def _compiled(plain: nn.Module, path: Path, sample_inputs: torch.Tensor | None) -> torch.jit.ScriptModule:
    try:
        return torch.jit.script(plain)
    except Exception as error:  # torch's compiler has no common error class; users' networks may contain any Python
        if not isinstance(plain, NormalizedModel) or isinstance(plain.network, BlockNetwork):
            raise
        plain.network = _traced(plain, path, sample_inputs, because=error)
        return torch.jit.script(plain)


def _traced(
    plain: NormalizedModel, path: Path, sample_inputs: torch.Tensor | None, because: Exception
) -> torch.jit.ScriptModule:
    """Trace the network on a few rows; accept the trace only if it is also right for other numbers of rows."""
    num_inputs = plain.input_mean.numel()
    shapes = (
        [(num_inputs,), (num_inputs, *_TRACED_FIELD)] if sample_inputs is None else [tuple(sample_inputs.shape[1:])]
    )
    failures: list[Exception] = [because]
    for shape in shapes:
        try:
            with torch.no_grad():
                traced: torch.jit.ScriptModule = torch.jit.trace(
                    plain.network, _some_numbers(plain, _TRACED_ROWS, shape), check_trace=False
                )
                for num_rows in _OTHER_ROWS:
                    rows = _some_numbers(plain, num_rows, shape)
                    if not torch.equal(traced(rows), plain.network(rows)):
                        raise RuntimeError(f"the trace gives other outputs for {num_rows} rows")
            return traced
        except Exception as error:
            failures.append(error)
    raise OutputError(
        f"{path}: the network can be neither compiled to TorchScript ({_first_line(failures[0])}) nor traced "
        f"({_first_line(failures[1])}); write its forward so that torch.jit.script or torch.jit.trace accepts it"
    ) from failures[1]


def _some_numbers(plain: NormalizedModel, num_rows: int, shape: tuple[int, ...]) -> torch.Tensor:
    numbers = torch.randn((num_rows, *shape), generator=torch.Generator().manual_seed(num_rows))
    return numbers.to(plain.input_mean.dtype)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return one_line(f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__)


def _archive_of(scripted: torch.jit.ScriptModule, record: NetworkRecord | None) -> bytes:
    # In memory first: if the disk is full, torch's own file writer ends the process.
    extra = {} if record is None else {RECORD: record.model_dump_json()}
    content: bytes = _quietly(lambda: scripted.save_to_buffer(_extra_files=extra))
    return content


def _put(content: Callable[[], bytes], path: Path, waits_for_disk: bool = True) -> None:
    write = write_durably if waits_for_disk else write_whole
    with writing(path, "check the folder's permissions and space", (OSError, RuntimeError)):
        write(path, content())


def _quietly(action: Callable[[], Result]) -> Result:
    # torch warns at each call that TorchScript is deprecated; C++ programs still need the format.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        # The tracer warns of possible errors; `_traced` tests for them with other numbers of rows.
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        return action()
