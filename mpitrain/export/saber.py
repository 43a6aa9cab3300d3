"""Export of a run's network as the emulator that SABER's TorchBalance loads, with a check of the file.

N  samples      F  input columns      O  output columns
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml

from mpitrain.data import FieldFile, SampleSource
from mpitrain.data.describe.names import find_variable
from mpitrain.data.formats.joined import open_joined
from mpitrain.data.selection.expressions.levels import find_positions
from mpitrain.data.selection.expressions.reference import Reference, parse_reference
from mpitrain.errors import ConfigError, DataError, OutputError, UserError
from mpitrain.export.networks import ExportedNetwork, load_networks
from mpitrain.export.request import ExportRequest, Say
from mpitrain.export.saber_emulators import SaberMask, SaberNames, emulator_of
from mpitrain.models import input_jacobian
from mpitrain.models.files.torchscript import load_and_run_code, write_script

# Columns are computed by the same float32 operations in another order; relative to the largest entry of a row.
_TOLERANCE = 1e-5
_MOST_CHECKED_PAIRS = 64


@dataclass(frozen=True)
class _Block:
    """The columns of one variable: its name in the data and in the calling model, and one reference per column."""

    name: str
    standard_name: str
    references: tuple[Reference, ...]


def export_saber(request: ExportRequest, say: Say) -> None:
    """Write the emulator as TorchScript and its entry for SABER's settings; read it again, compare, `say` the results.

    For one process. A network becomes a surface emulator if each variable has one column, otherwise a vertical one.
    Raises UserError if SABER's interface does not allow the network, the names or the mask, OutputError if a file
    cannot be written or its derivatives differ from the network's.
    """
    torch.set_num_threads(1)
    mask_range = _mask_range(request)
    wanted, output = load_networks(request, say), request.output_file
    _check_fits(wanted, request.run)
    names, is_vertical = _names_of(wanted, request)
    mask = _mask_of(request, mask_range, wanted, names)
    mean, settings = wanted.members[0].get_buffer("input_mean"), output.with_suffix(".yaml").name
    request.check_outputs([settings])
    write_script(
        wanted.model, output, lambda network: emulator_of(network, mean, names, is_vertical, mask), wanted.inputs
    )
    say(f"{output}: {wanted.origin}")
    kind = "vertical" if is_vertical else "surface"
    say(f"{kind} emulator: {', '.join(names.output_names)} from {', '.join(names.input_names)}")
    say(_mask_text(mask))
    say(_checked(output, wanted, is_vertical, mask))
    text = _settings_of(output, names, kind, mask)
    say(f"{request.write_texts({settings: text})}: the block TorchBalance of SABER's settings")


def _mask_range(request: ExportRequest) -> tuple[float, float] | None:
    """Return the range of unmasked values of the masking field; None if no mask is requested. Raises UserError."""
    variable, text = request.mask_variable, request.mask_range
    if not variable and not text:
        return None
    if not (variable and text):
        given, other = ("--mask-variable", "--mask-range") if variable else ("--mask-range", "--mask-variable")
        example = "--mask-variable sea_ice_area_fraction --mask-range 0.15,1"
        raise UserError(f"{given}: needs {other} too, which has no default; for example {example}")
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        low, high = 1.0, 0.0
    if not low <= high:
        raise UserError(f"--mask-range {text}: give the lowest and the highest unmasked value, such as 0.15,1")
    return low, high


def _mask_of(
    request: ExportRequest, mask_range: tuple[float, float] | None, wanted: ExportedNetwork, names: SaberNames
) -> SaberMask:  # fmt: skip
    """Return the mask: an input column if the masking field is an input with one column, otherwise SABER's field."""
    if mask_range is None:
        return SaberMask()
    columns, targets = (
        [_reference(text).name for text in some]
        for some in (wanted.first.description.input_names, wanted.first.description.target_names)
    )
    variables = list(dict.fromkeys(columns))
    known = {**dict.fromkeys(targets, names.output_names[0]), **dict(zip(variables, names.input_names, strict=True))}
    requested = _reference(request.mask_variable).name
    variable = _given_names(request.names).get(requested) or known.get(requested, request.mask_variable)
    column = -1
    if variable in names.input_names:
        own = variables[names.input_names.index(variable)]
        column = columns.index(own) if columns.count(own) == 1 else -1
    return SaberMask(variable, *mask_range, column)


def _mask_text(mask: SaberMask) -> str:
    if not mask.variable:
        return "derivatives are 0 where the value of SABER's masking field is 0 or not finite"
    source = "the input" if mask.column >= 0 else "SABER's masking field"
    return f"derivatives are 0 where {source} {mask.variable} is not finite or not in {mask.low:g} to {mask.high:g}"


def _settings_of(output: Path, names: SaberNames, kind: str, mask: SaberMask) -> str:
    """Return SABER's settings for this emulator, without derivatives of a variable with respect to itself."""
    entry: dict[str, object] = {"name": names.output_names[0], "path": str(output)}
    entry["jacobian wrt"] = [name for name in names.input_names if name not in names.output_names]
    if mask.variable and mask.column < 0:
        entry["jacobian masking"] = {"variable": mask.variable}
    block: dict[str, object] = {"saber block name": "TorchBalance", "surface emulators": []}
    block[f"{kind} emulators"] = [entry]
    text = yaml.safe_dump({"saber outer blocks": [block]}, sort_keys=False, default_flow_style=None, width=120)
    return f"# Written by mpitrain for {output.name}\n{text}"


def _check_fits(wanted: ExportedNetwork, run: Path) -> None:
    if wanted.inputs.dim() != 2:
        raise UserError(f"{run}: is a network of fields; SABER's interface is for points and columns")
    dtype = wanted.inputs.dtype
    if dtype != torch.float32:
        raise UserError(f"{run}: is a network of {str(dtype).removeprefix('torch.')}; SABER's interface is for float32")


def _names_of(wanted: ExportedNetwork, request: ExportRequest) -> tuple[SaberNames, bool]:
    description, source = wanted.first.description, wanted.first.source
    given = _given_names(request.names)
    file = None if source is None else _first_file(source)
    inputs, outputs = (_blocks(columns, given, file) for columns in (description.input_names, description.target_names))
    unknown = set(given) - {block.name for block in (*inputs, *outputs)} - set(description.input_names)
    if unknown:
        known = ", ".join(block.name for block in (*inputs, *outputs))
        raise UserError(f"--name {min(unknown)}=...: the network has no such variable; it has {known}")
    if len(outputs) != 1:
        raise UserError(
            f"{request.run}: has the targets {', '.join(block.name for block in outputs)}; SABER's interface has one "
            "output variable; train one network for each"
        )
    input_names = tuple(block.standard_name for block in inputs)
    output_names = tuple(block.standard_name for block in outputs)
    wrong = next((name for name in (*input_names, *output_names) if "div_d" in name), None)
    if wrong is not None:
        raise UserError(f"'{wrong}': SABER splits the names of derivatives at 'div_d'; give another name with --name")
    is_vertical = any(len(block.references) > 1 for block in (*inputs, *outputs))
    if is_vertical:
        return SaberNames(input_names, output_names), True
    levels = [tuple(_level(block.references[0], file) for block in blocks) for blocks in (inputs, outputs)]
    return SaberNames(input_names, output_names, *levels), False


def _given_names(texts: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    wrong = next((text for text, (name, _, other) in zip(texts, pairs, strict=True) if not (name and other)), None)
    if wrong is not None:
        raise UserError(f"--name {wrong}: write DATA_NAME=MODEL_NAME, such as aice_h=sea_ice_area_fraction")
    return {name.strip(): other.strip() for name, _, other in pairs}


def _first_file(source: SampleSource) -> FieldFile | None:
    try:
        first = source.files[0] if source.files else None
        return None if first is None else open_joined(first.paths, first.reading, first.taken)
    except DataError:
        return None


def _blocks(columns: Sequence[str], given: Mapping[str, str], file: FieldFile | None) -> list[_Block]:
    """Group consecutive columns by variable. Raises UserError if one has no name, or columns that are not adjacent."""
    references = [(text, _reference(text)) for text in columns]
    blocks = []
    of_one_time = lambda pair: (pair[1].name, pair[1].lag, pair[1].by_row)  # noqa: E731
    for (name, *_), group in itertools.groupby(references, key=of_one_time):
        texts, parts = zip(*group, strict=True)
        blocks.append(_Block(name, _standard_name(name, texts, given, file), parts))
    names = [block.name for block in blocks]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise UserError(
            f"the columns of {repeated} are not adjacent, or are of several times; SABER packs variable by variable"
        )
    return blocks


def _reference(text: str) -> Reference:
    try:
        return parse_reference(text, "variables")
    except ConfigError:
        return Reference(text)  # an expression


def _standard_name(name: str, texts: Sequence[str], given: Mapping[str, str], file: FieldFile | None) -> str:
    given_name = next((given[text] for text in (name, *texts) if text in given), None)
    found = given_name or _attribute(name, file)
    if not found:
        raise UserError(
            f"'{name}' has no standard_name in the run's data; give the name that SABER uses, such as "
            f"--name {name}=sea_ice_area_fraction"
        )
    return found


def _attribute(name: str, file: FieldFile | None) -> str:
    if file is None:
        return ""
    try:
        return file.variables[find_variable(name, file)].text("standard_name")
    except DataError:
        return ""


def _level(reference: Reference, file: FieldFile | None) -> int:
    """Return the position of the level, from 0; 0 for a field with one level."""
    if not reference.indices:
        return 0
    if file is not None:
        positions = find_positions(reference, file.variables[find_variable(reference.name, file)], file)
        return next(iter(positions.values()))[0] if positions else 0
    index = reference.indices[-1]
    if index.dimension is None and index.first is not None:
        return int(index.first)
    raise UserError(
        f"the level of '{reference.name}' is given by a coordinate, but the run's data cannot be read; restore it"
    )


def _checked(path: Path, wanted: ExportedNetwork, is_vertical: bool, mask: SaberMask) -> str:
    """Compare the file's values and derivatives with the network's; return the result as a line. Raises OutputError."""
    loaded, inputs = load_and_run_code(path), wanted.inputs
    values = torch.full((len(inputs), 1), min(max(0.5, mask.low), mask.high))
    values[::5] = torch.nan
    counted = emulator_of(wanted.model, wanted.inputs[0], SaberNames((), ()), is_vertical, mask).counted(inputs, values)
    expected = input_jacobian(wanted.model, inputs)[1] * counted.unsqueeze(2)
    scale = expected.abs().amax(dim=2, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    with torch.no_grad():
        if is_vertical:
            rows, columns = _some_pairs(*expected.shape[1:])
            found = loaded.jac_physical(inputs, values, rows, columns)
            difference = (found - expected[:, rows, columns]) / scale[:, rows, 0]
        else:
            difference = (loaded.jac_physical(inputs, values) - expected) / scale
        same_values = torch.equal(loaded.predict(inputs), wanted.model(inputs))
    largest = float(difference.abs().max())
    if not same_values or not largest <= _TOLERANCE:
        raise OutputError(
            f"{path}: its values or derivatives differ from the network's (by {largest:.2g}); report this"
        )
    return (
        f"checked: predict gives the same bits, jac_physical agrees to {largest:.1g} of a row's largest entry; "
        f"{int(counted.sum())} of {len(inputs)} samples are unmasked"
    )


def _some_pairs(num_rows: int, num_columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows and columns of entries that are spread over the Jacobian."""
    numbers = torch.arange(min(num_rows * num_columns, _MOST_CHECKED_PAIRS))
    return numbers % num_rows, numbers * 7 % num_columns
