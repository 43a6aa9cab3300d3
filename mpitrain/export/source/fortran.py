"""Fortran 2008: a module without dependencies, and its self-test."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

import numpy as np

from mpitrain.export.source.emulator import CONVERSIONS, Emulator
from mpitrain.export.source.fortran_fixed import fixed_procedures
from mpitrain.export.source.fortran_interface import batch_procedures, member_procedures
from mpitrain.export.source.fortran_kinds import field_names, forward_fields, gpu_callable, interfaces, with_real64
from mpitrain.export.source.fortran_masked import masked_procedures
from mpitrain.export.source.fortran_network import network_procedures, slopes_types
from mpitrain.export.source.fortran_norm import NORM_PROCEDURES
from mpitrain.export.source.fortran_numbers import array, kind_of_integer, number, statement, texts
from mpitrain.export.source.fortran_test import test_program
from mpitrain.export.source.words import describe, usage
from mpitrain.inference.portable.in_c import tile_of
from mpitrain.inference.portable.network import NORM_EPSILON, Array

_WIDTH = 120
_INFINITY_BITS = {"float32": "7F800000", "float64": "7FF0000000000000"}
_PUBLIC = (
    "wp, num_inputs, num_outputs, num_members, inputs_first, samples_first, input_names, input_units, output_names",
    "output_units, input_minimum, input_maximum, input_mean, input_std, output_minimum, output_maximum, probe",
    "is_inputs_first, is_samples_first, is_either, is_other_order, is_other_units, is_wrong",
    "forward, tangent_linear, adjoint, jacobian, jac_pairs, forward_fields, check_layout, describe, check_arithmetic",
)


def fortran_files(emulator: Emulator) -> dict[str, str]:
    """Return the sources in Fortran 2008."""
    name = emulator.name
    return {f"{name}.f90": "\n".join(_module(emulator)), f"{name}_test.f90": "\n".join(test_program(emulator))}


def _module(emulator: Emulator) -> Iterator[str]:
    network = emulator.network
    yield _comment([*describe(emulator, "({})", 1), "", *usage(emulator, "fortran"), "", *_calls(emulator)])
    real, integer = ("real32" if network.dtype == "float32" else "real64"), kind_of_integer(network.dtype)
    yield f"module {emulator.name}"
    more = ", real64" if network.dtype == "float32" else ""
    yield f"  use, intrinsic :: iso_fortran_env, only: wp => {real}, ip => {integer}{more}"
    yield "  implicit none\n  private"
    yield from (f"  public :: {words}" for words in _PUBLIC)
    yield from _constants(emulator)
    yield from _weights(emulator)
    procedures = "\n".join(_procedures(emulator))
    if emulator.is_gpu_callable:
        copies, procedures = gpu_callable(procedures, "\n".join([*_constants(emulator), *_weights(emulator)]))
        yield copies
    yield from slopes_types(network)
    yield from interfaces(network.dtype)
    yield "\ncontains\n"
    yield with_real64(procedures) if network.dtype == "float32" else procedures
    yield from forward_fields(emulator.inputs, emulator.outputs, network.dtype)
    yield f"end module {emulator.name}\n"
    yield from _prefixed(emulator.name)


def _procedures(emulator: Emulator) -> Iterator[str]:
    network, is_ensemble = emulator.network, emulator.is_ensemble
    has_slopes = any(layer.activation != "none" for layer in network.layers)
    yield from fixed_procedures(network.output_mean is not None, is_ensemble, has_slopes)
    yield from [NORM_PROCEDURES] if network.has_norms else []
    yield from network_procedures(network)
    for suffix in ("one", "tile"):
        yield from member_procedures(suffix, not network.is_linear, is_ensemble)
    yield from batch_procedures(is_ensemble)
    yield from masked_procedures(not network.is_linear, is_ensemble)


def _prefixed(name: str) -> Iterator[str]:
    """Yield a module in which all names have the network's name as prefix, for programs that use several networks."""
    public = [word.strip() for words in _PUBLIC for word in words.split(",")]
    yield f"! The same names with the prefix {name}_, for programs that use several networks."
    yield f"module {name}_prefixed"
    yield statement(f"use {name}, only:", [f"{name}_{word} => {word}" for word in public])
    yield f"  implicit none\n  public\nend module {name}_prefixed\n"


def _calls(emulator: Emulator) -> list[str]:
    is_ensemble = emulator.is_ensemble
    spread = ", spread" if is_ensemble else ""
    fields = ", ".join(name for some in field_names(emulator.inputs, emulator.outputs) for name, _ in some)
    return [
        "One sample, x(num_inputs), y(num_outputs), jac(num_inputs, num_outputs) with jac(i, o) = d y(o) / d x(i):",
        f"  call forward(x, y{spread}, status); call jacobian(x, y, jac{spread})",
        "  call tangent_linear(x, dx, dy); call adjoint(x, dy, dx)",
        *(["GPU kernels may call these four: !$omp declare target, !$acc routine seq."]
          if emulator.is_gpu_callable else []),
        "Batches, inputs_first: x(num_inputs, samples), y(num_outputs, samples),",
        "jac(num_inputs, num_outputs, samples);",
        "samples_first: x(samples, num_inputs), y(samples, num_outputs), jac(samples, num_inputs, num_outputs):",
        f"  call forward(inputs_first, x, y{spread}, status, outside, worst_input) and so on",
        "  call tangent_linear(inputs_first, x, dx, dy, mask=mask), and adjoint: results times mask(samples); 0 where",
        "  the mask is 0, even if the arrays contain NaN there. Atlas stores fields as inputs_first: levels fastest.",
        "  call jac_pairs(inputs_first, x, rows, columns, pairs, mask): pairs(p, sample), the derivatives of outputs",
        "  rows(p) by inputs columns(p), numbered from 1.",
        "The model's own arrays, one per variable: rank 1 (samples), or rank 2 with levels in the place of the inputs:",
        f"  call forward_fields(inputs_first, {fields}, status, outside)",
        "All batches except jac_pairs also accept arrays of real64 (masks are real(wp)).",
        "status (optional) is the number of samples with an input outside the range of the training data, or NaN; it",
        "is -1, and the results are NaN, if shapes of arrays do not match. outside(samples) (optional): which samples",
        "these are. worst_input (optional): the input that lies farthest outside, in standard deviations (0: none)." + (
            " spread (optional) is the standard deviation over the members." if is_ensemble else ""),
    ]  # fmt: skip


def _constants(emulator: Emulator) -> Iterator[str]:
    network, limits = emulator.network, emulator.network.limits
    sizes = {"num_inputs": len(emulator.inputs), "num_outputs": len(emulator.outputs),
             "num_members": len(emulator.networks), "inputs_first": 1, "samples_first": 2, "tile": tile_of(network),
             "is_inputs_first": 1, "is_samples_first": 2, "is_either": 3, "is_other_order": -1, "is_other_units": -2,
             "is_wrong": -3}  # fmt: skip
    yield "\n".join(f"  integer, parameter :: {name} = {value}" for name, value in sizes.items())
    for name, variables in (("input", emulator.inputs), ("output", emulator.outputs)):
        yield texts(f"{name}_names", [one.name for one in variables])
        yield texts(f"{name}_units", [one.units for one in variables])
        for key in ("minimum", "maximum"):
            yield from array(f"{name}_{key}", _numbers([getattr(one, key) for one in variables], emulator))
    probe = emulator.expected_of_probe
    yield "  ! The sample that check_layout expects."
    yield from array("probe", emulator.probe)
    yield from array("probe_tolerance", emulator.tolerance)
    yield from array("probe_outputs", probe[0])
    yield from array("probe_jacobian", probe[1])
    pairs = _numbers(CONVERSIONS, emulator)
    yield f"  integer, parameter :: num_conversions = {len(pairs)}"
    yield from array("conversion_factor", pairs[:, 0])
    yield from array("conversion_summand", pairs[:, 1])
    yield "  ! Numbers below these limits become 0, so that it does not matter whether the CPU flushes subnormals."
    yield f"  integer(ip), parameter :: infinity_bits = int(z'{_INFINITY_BITS[network.dtype]}', ip)"
    named = {"value_limit": limits.value, "sum_limit": limits.sum, "result_limit": limits.result}
    named |= {"deviation_limit": limits.deviation} if emulator.is_ensemble or network.has_norms else {}
    named |= {"norm_epsilon": NORM_EPSILON} if network.has_norms else {}
    for name, value in named.items():
        yield f"  real(wp), parameter :: {name} = {number(_numbers(value, emulator))}"


def _numbers(values: object, emulator: Emulator) -> Array:
    return np.array(values, emulator.network.dtype)


def _weights(emulator: Emulator) -> Iterator[str]:
    """Yield, for each layer, weight_1(outputs, inputs, member), transposed_1 for the adjoint, and bias_1."""
    count = len(emulator.networks)
    for number_of_layer, layer in enumerate(emulator.network.layers, 1):
        num_in, num_out = layer.weight.shape
        of_members = [network.layers[number_of_layer - 1] for network in emulator.networks]
        weights = np.stack([one.weight for one in of_members])
        yield from array(f"weight_{number_of_layer}", weights, f"{num_out}, {num_in}, {count}")
        shape = f"[{num_in}, {num_out}, {count}]"
        yield f"  real(wp), parameter :: transposed_{number_of_layer}({shape[1:-1]}) = &"
        yield f"    reshape(weight_{number_of_layer}, {shape}, order=[2, 1, 3])"
        yield from array(f"bias_{number_of_layer}", np.stack([one.bias for one in of_members]), f"{num_out}, {count}")
        norms = [one.norm for one in of_members if one.norm is not None]
        for name in ("scale", "offset") if norms else ():
            values = np.stack([getattr(one, name) for one in norms])
            yield from array(f"{name}_{number_of_layer}", values, f"{num_out}, {count}")
    # Members may be trained on different samples, so each has its own statistics; the first member's are public.
    of_outputs = () if emulator.network.output_mean is None else ("output_mean", "output_std")
    for name in ("input_mean", "input_std", *of_outputs):
        rows = np.stack([getattr(one, name) for one in emulator.networks])
        yield from array(f"member_{name}", rows, f"{rows.shape[1]}, {count}")
        if name not in of_outputs:
            yield f"  real(wp), parameter :: {name}(num_inputs) = member_{name}(:, 1)"


def _comment(lines: Sequence[str]) -> str:
    safe = [re.sub(r"[\r\n]", " ", line) for line in lines]
    wrapped = [part for line in safe for part in (textwrap.wrap(line, _WIDTH, subsequent_indent="  ") or [""])]
    return "\n".join(f"! {line}".rstrip() for line in wrapped)
