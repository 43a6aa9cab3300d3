"""Export of the network of a run, or of an ensemble, as source code in C, C++ or Fortran, checked by its self-test.

F  input features
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mpitrain.compiler import find_compiler
from mpitrain.errors import OutputError, UserError
from mpitrain.export.formats.format import SourceFormat
from mpitrain.export.networks import ExportedNetwork, load_networks
from mpitrain.export.request import ExportRequest, Say
from mpitrain.export.source.emulator import Emulator, Variable, make_emulator
from mpitrain.inference.cf_variables import known_units
from mpitrain.inference.portable.network import PortableNetwork, find_tiny_input, portable_network_of
from mpitrain.models import architecture_of
from mpitrain.models.files.record import learnt_transforms

_NUM_TESTED = 32
_TIMEOUT_S = 600.0


def export_sources(language: SourceFormat, request: ExportRequest, say: Say) -> None:
    """Write the sources next to `request.output_file`, compile and run their self-test, and `say` the result.

    Raises UserError if the network is not a chain of dense layers, OutputError if a file cannot be written or the
    self-test fails.
    """
    emulator = replace(_emulator(request, request.output_file.stem, say), is_gpu_callable=request.gpu_callable)
    files = language.files(emulator)
    say(f"{request.write_texts(files)}: {'; '.join(emulator.origin)}")
    say(_self_test(language, files, os.environ))


@dataclass(frozen=True)
class PortableRun:
    """The networks to export, as numpy arrays, and their input and output variables."""

    wanted: ExportedNetwork
    networks: list[PortableNetwork]
    inputs: list[Variable]
    outputs: list[Variable]


def load_portable(request: ExportRequest, say: Say) -> PortableRun:
    """Return the networks that `request` names. Raises UserError if they are not chains of dense layers."""
    wanted = load_networks(request, say)
    networks = [
        _network_of(folder, model, wanted.first.config.training.dtype, request.format)
        for folder, model in zip((request.run, *request.members), wanted.models, strict=True)
    ]
    described, found, network = wanted.first.description, wanted.first.statistics, networks[0]
    of_inputs = (network.input_mean, network.input_std)
    of_outputs = None if network.output_mean is None else (network.output_mean, network.output_std)
    inputs = _variables(described.input_names, described.input_units, found, of_inputs, wanted.samples)
    outputs = _variables(described.target_names, described.target_units, found, of_outputs, None)
    return PortableRun(wanted, networks, inputs, outputs)


def _emulator(request: ExportRequest, name: str, say: Say) -> Emulator:
    found = load_portable(request, say)
    inputs, wanted = found.wanted.samples, found.wanted
    samples = inputs[np.linspace(0, len(inputs) - 1, min(len(inputs), _NUM_TESTED)).astype(np.int64)]
    say(f"self-test: {len(samples)} of {wanted.what}")
    return make_emulator(name, found.networks, found.inputs, found.outputs, wanted.origins, samples)


def _network_of(folder: Path, model: Any, dtype: str, language: str) -> PortableNetwork:
    if any(learnt_transforms(model)):
        raise UserError(
            f"{folder}: was trained with model.output_transforms, which --format {language} does not support; "
            "give --format torchscript, pt2 or onnx"
        )
    network = portable_network_of(model)
    if network is None:
        known = architecture_of(model)
        raise UserError(
            f"{folder}: model.name={known.name if known else '?'} in {dtype} is not a chain of dense "
            f"layers in float32 or float64, which --format {language} requires; give --format torchscript, pt2 or onnx"
        )
    tiny = find_tiny_input(network)
    if tiny is not None:
        raise UserError(
            f"{folder}: the standard deviation of input {tiny + 1}, {network.input_std[tiny]}, is too small "
            "for source code; give that variable in other units, or --format torchscript"
        )
    return network


def _variables(
    names: Sequence[str],
    units: Sequence[str],
    found: Mapping[str, Any],
    moments: Sequence[Any] | None,
    inputs: Any,
) -> list[Variable]:
    """Return names, units and statistics; ranges not recorded are those of `inputs` (b, F), or mean -+ 4 std."""
    variables = []
    for number, (name, unit) in enumerate(zip(names, known_units(names, units), strict=True)):
        record = found.get(name, {})
        known = (record.get("mean", 0.0), record.get("std", 1.0))
        mean, std = map(float, known if moments is None else (one[number] for one in moments))
        column = inputs[:, number] if inputs is not None else np.array([mean - 4 * std, mean + 4 * std])
        lowest, highest = (record.get(key) for key in ("minimum", "maximum"))
        lowest = float(column.min()) if lowest is None else float(lowest)
        highest = float(column.max()) if highest is None else float(highest)
        variables.append(Variable(name, unit, lowest, highest, mean, std))
    return variables


def _self_test(language: SourceFormat, files: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """Compile and run the self-test; return the result as a line. Raises OutputError if it fails."""
    compiler = find_compiler(language.name, environ)
    if compiler is None:
        return (
            f"not checked: no {language.name} compiler on the PATH; compile and run the self-test where the model runs"
        )
    sources = [name for name in files if name.endswith(language.suffix)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for name, text in files.items():
            Path(folder, name).write_text(text)
        command = [compiler, *language.flags, *sources, "-o", "self_test", "-lm"]
        for step in (command, [str(Path(folder, "self_test"))]):
            try:
                done = subprocess.run(
                    step, cwd=folder, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S,
                    env={**environ, "TMPDIR": folder},  # an interrupted compiler leaves its files in this folder
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                return f"not checked: {' '.join(step)} took more than {_TIMEOUT_S:.0f} s; run the self-test yourself"
            if done.returncode != 0:
                raise OutputError(f"{' '.join(step)} failed: {_first_failure(done.stdout + done.stderr)}; report this")
    return f"checked: the self-test passes, compiled by {' '.join(command[:-3])}"


def _first_failure(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next(
        (line for line in lines if "rror" in line or "FAILED" in line or "OTHER" in line),
        lines[0] if lines else "no message",
    )
