"""The functions of one network in Fortran: the statements of `portable.c_network`, with constant sizes.

Constant sizes let compilers keep several sums in registers. `m` is the number of the member.
"""

from __future__ import annotations

from collections.abc import Iterator

from mpitrain.export.source.fortran_numbers import FORTRAN, statement, statements
from mpitrain.inference.portable.functions import ACTIVATIONS, COEFFICIENTS
from mpitrain.inference.portable.network import DenseLayer, PortableNetwork
from mpitrain.inference.portable.statements import write_statements
from mpitrain.inference.portable.tiles import SIDE_BY_SIDE, blocks_of_sums, of_value, side_by_side, takes_turns

_DENSE_ONE = """\
  ! sums(j) = start(j) + h(1) * {w}(j, 1) + h(2) * {w}(j, 2) + ..., in this order, for one sample.
  pure subroutine {name}_one(m, {flag}h, sums)
    integer, intent(in) :: m
{declared}    real(wp), intent(in) :: h({num_in})
    real(wp), intent(out) :: sums({num_out})
    real(wp) :: term
    integer :: i, j
    {start_one}
    do i = 1, {num_in}
      do j = 1, {num_out}
        term = {w}(j, i, m) * h(i)
        sums(j) = sums(j) + term
      end do
    end do
  end subroutine {name}_one
"""
_DENSE_TILE = """\
  ! The same for a tile of samples, with as many sums at a time as fit in registers.
  pure subroutine {name}_tile(m, {flag}h, sums)
    integer, intent(in) :: m
{declared}    real(wp), intent(in) :: h(tile, {num_in})
    real(wp), intent(out) :: sums(tile, {num_out})
  {locals}
    integer :: i, b{more_integers}
{blocks}
  end subroutine {name}_tile
"""


def network_procedures(network: PortableNetwork) -> Iterator[str]:
    """Yield the procedures of activations, layers and members."""
    for name in sorted({layer.activation for layer in network.layers} - {"none"}):
        yield _activation(name, network.dtype)
    for number, layer in enumerate(network.layers, 1):
        num_in, num_out = layer.weight.shape
        yield from _dense(f"dense_{number}", f"weight_{number}", f"bias_{number}", num_in, num_out)
        yield from _dense(f"transposed_dense_{number}", f"transposed_{number}", None, num_out, num_in)
    for suffix in ("one", "tile"):
        yield _forward(network, suffix)
        yield _tangent(network, suffix)
        yield _adjoint(network, suffix)


def slopes_types(network: PortableNetwork) -> Iterator[str]:
    """Yield the types of the activations' slopes, for one sample and for a tile."""
    for suffix in ("one", "tile"):
        fields = []
        for number, layer in enumerate(network.layers, 1):
            size = _shape(suffix, len(layer.bias))
            fields += [f"    real(wp) :: layer_{number}{size}"] if layer.activation != "none" else []
            fields += [f"    real(wp) :: {', '.join(_kept(layer, number, suffix))}"] if layer.norm is not None else []
        fields = fields or ["    real(wp) :: none = 0"]
        yield "\n".join([f"  type :: slopes_{suffix}", *fields, f"  end type slopes_{suffix}"])


def _kept(layer: DenseLayer, number: int, suffix: str) -> tuple[str, str]:
    """Return the declarations of values that the norm of a layer keeps for derivatives."""
    return f"normalised_{number}{_shape(suffix, len(layer.bias))}", f"factor_{number}({_samples(suffix)})"


def _activation(name: str, dtype: str) -> str:
    values, y = _values_of(name, dtype)
    slopes, slope, uses = _slope_of(name, dtype)
    return f"""\
  ! h = {name}(z).
  pure subroutine {name}_values(count, limit, z, h)
    integer, intent(in) :: count
    real(wp), intent(in) :: limit, z(count)
    real(wp), intent(out) :: h(count)
  {_variables(values)}
    integer :: k
    do k = 1, count
{statements(_with_bits(values, dtype), "      ")}
      h(k) = merge(0.0_wp, {y}, abs({y}) < limit)
    end do
  end subroutine {name}_values
{_values_of_tile(name, _with_bits(values, dtype), y)}
  ! The derivative of h by z.
  pure subroutine {name}_slopes(count, {", ".join(uses)}, slope)
    integer, intent(in) :: count
    real(wp), intent(in) :: {", ".join(f"{one}(count)" for one in sorted(uses))}
    real(wp), intent(out) :: slope(count)
  {_variables(slopes)}
    integer :: k
    do k = 1, count
{statements(_with_bits(slopes, dtype), "      ")}
      slope(k) = {slope}
    end do
  end subroutine {name}_slopes
"""


def _values_of_tile(name: str, values: list[tuple[str, str]], y: str) -> str:
    """Return the procedure for tiles of `units` units; "" if it is not used."""
    if not takes_turns(values):
        return ""
    places = [("z(k)", "z(b, j + {n})")]
    turns = side_by_side(values, places)
    stored = [(f"h(b, j + {n})", f"merge(0.0_wp, {of}, abs({of}) < limit)")
              for n in range(SIDE_BY_SIDE) for of in [of_value(y, n, places)]]  # fmt: skip
    return f"""
  ! The same for a tile: {SIDE_BY_SIDE} units at a time, interleaved, so that no unit waits for its own last result.
  pure subroutine {name}_tile(units, limit, z, h)
    integer, intent(in) :: units
    real(wp), intent(in) :: limit, z(tile, units)
    real(wp), intent(out) :: h(tile, units)
  {_variables(turns)}
    integer :: j, b
    do j = 1, units - {SIDE_BY_SIDE - 1}, {SIDE_BY_SIDE}
      do b = 1, tile
{statements(turns, "        ")}
{statements(stored, "        ")}
      end do
    end do
    do j = units - mod(units, {SIDE_BY_SIDE}) + 1, units
      call {name}_values(tile, limit, z(:, j), h(:, j))
    end do
  end subroutine {name}_tile
"""


def _values_of(activation: str, dtype: str) -> tuple[list[tuple[str, str]], str]:
    """Return the statements of an activation, and the name of its result."""
    return write_statements(ACTIVATIONS[activation].value, ["z(k)"], FORTRAN, dtype)


def _slope_of(activation: str, dtype: str) -> tuple[list[tuple[str, str]], str, list[str]]:
    """Return the statements of an activation's derivative, the result's name, and which of z and h it needs."""
    slopes, slope = write_statements(ACTIVATIONS[activation].slope, ["z(k)", "h(k)"], FORTRAN, dtype)
    return slopes, slope, [name for name in ("z", "h") if any(f"{name}(k)" in text for _, text in slopes)]


def _variables(lines: list[tuple[str, str]]) -> str:
    return statement("real(wp) ::", [name for name, _ in lines])


def _with_bits(lines: list[tuple[str, str]], dtype: str) -> list[tuple[str, str]]:
    c = COEFFICIENTS[dtype]
    added = c.exponent_bias << c.mantissa_bits
    return [
        (name, f"transfer(ishft(transfer({text[13:-1]}, 0_ip), {c.mantissa_bits}) + {added}_ip, 0.0_wp)")
        if text.startswith("power_of_two(") else (name, text)
        for name, text in lines
    ]  # fmt: skip


def _dense(name: str, weight: str, bias: str | None, num_in: int, num_out: int) -> Iterator[str]:
    common = {"name": name, "w": weight, "num_in": num_in, "num_out": num_out}
    common["flag"] = "from_bias, " if bias else ""
    common["declared"] = "    logical, intent(in) :: from_bias\n" if bias else ""
    start_one = f"sums = merge({bias}(:, m), 0.0_wp, from_bias)" if bias else "sums = 0.0_wp"
    yield _DENSE_ONE.format(**common, start_one=start_one)
    blocks = [*blocks_of_sums(num_out)]
    text = "\n".join(_block_of_sums(weight, bias, num_in, *block) for block in blocks)
    count = max(count for *_, count in blocks)
    local = [f"{one}_{q}{shape}" for one, shape in (("sum", "(tile)"), ("product", "")) for q in range(count)]
    has_loop = any(end - first > count for first, end, count in blocks)
    yield _DENSE_TILE.format(
        **common, locals=statement("real(wp) ::", local), more_integers=", j" if has_loop else "", blocks=text
    )


def _block_of_sums(weight: str, bias: str | None, num_in: int, first: int, end: int, count: int) -> str:
    """Return the statements for outputs first to end (from 0), `count` at a time; a loop if there are more."""
    is_loop = end - first > count
    places = [(f"j + {q}" if q else "j") if is_loop else str(first + q + 1) for q in range(count)]
    lines = [f"sum_{q} = {f'merge({bias}({j}, m), 0.0_wp, from_bias)' if bias else '0.0_wp'}"
             for q, j in enumerate(places)]  # fmt: skip
    lines += [f"do i = 1, {num_in}", *(["  !GCC$ unroll 1"] if count == 1 else []), "  do b = 1, tile"]
    lines += [f"    product_{q} = {weight}({j}, i, m) * h(b, i)" for q, j in enumerate(places)]
    lines += [f"    sum_{q}(b) = sum_{q}(b) + product_{q}" for q in range(count)]
    lines += ["  end do", "end do", *(f"sums(:, {j}) = sum_{q}" for q, j in enumerate(places))]
    if is_loop:
        lines = [f"do j = {first + 1}, {end}, {count}", *(f"  {line}" for line in lines), "end do"]
    return "\n".join(f"    {line}" for line in lines)


def _shape(suffix: str, size: object) -> str:
    return f"({size})" if suffix == "one" else f"(tile, {size})"


def _count(suffix: str, size: object) -> str:
    return str(size) if suffix == "one" else f"{size} * tile"


def _forward(network: PortableNetwork, suffix: str) -> str:
    lines = [f"call normalise(m, {_samples(suffix)}, x, h0)"]
    for number, layer in enumerate(network.layers, 1):
        count = _count(suffix, len(layer.bias))
        limit = "result_limit" if number == len(network.layers) else "value_limit"
        lines.append(f"call dense_{number}_{suffix}(m, .true., h{number - 1}, z{number})")
        lines += _normalised(layer, number, suffix)
        if layer.activation == "none":
            lines.append(f"h{number} = merge(0.0_wp, z{number}, abs(z{number}) < {limit})")
        else:
            *_, uses = _slope_of(layer.activation, network.dtype)
            given = ", ".join(f"{name}{number}" for name in uses)
            slopes = f"call {layer.activation}_slopes({count}, {given}, slopes%layer_{number})"
            turns = suffix == "tile" and takes_turns(_values_of(layer.activation, network.dtype)[0])
            called = f"tile({len(layer.bias)}" if turns else f"values({count}"
            lines += [f"call {layer.activation}_{called}, {limit}, z{number}, h{number})",
                      f"if (present(slopes)) {slopes}"]  # fmt: skip
        lines += _added(layer, f"h{number - 1}", f"h{number}")
    member = "m, " if network.output_mean is not None else ""
    lines.append(f"call to_physical({member}{_samples(suffix)}, h{len(network.layers)}, y)")
    if network.is_linear:
        lines.append("if (present(slopes)) slopes%none = 0")
    local = _values(network, suffix, "h", "z")
    for number, layer in enumerate(network.layers, 1):
        local += _kept(layer, number, suffix) if layer.norm is not None else ()
    declared = [*_arguments(suffix, "x", "y"), f"    type(slopes_{suffix}), intent(out), optional :: slopes"]
    return _subroutine(f"forward_member_{suffix}", "m, x, y, slopes", declared, local, lines)


def _samples(suffix: str) -> str:
    return "1" if suffix == "one" else "tile"


def _values(network: PortableNetwork, suffix: str, of_all: str, of_layers: str) -> list[str]:
    """Return the arrays of values that a procedure computes; those named `of_all` also exist for the inputs."""
    shapes = [_shape(suffix, size) for size in network.sizes]
    return [f"{name}{n}{shapes[n]}" for name, first in ((of_all, 0), (of_layers, 1)) for n in range(first, len(shapes))]


def size_of(name: str) -> str:
    """Return the number of values that an argument of a procedure has for one sample."""
    return "num_inputs" if name in ("x", "dx") else "num_outputs"


def _arguments(suffix: str, given: str, result: str) -> list[str]:
    return [
        f"    real(wp), intent(in) :: {given}{_shape(suffix, size_of(given))}",
        f"    real(wp), intent(out) :: {result}{_shape(suffix, size_of(result))}",
    ]


def _tangent(network: PortableNetwork, suffix: str) -> str:
    lines = [f"call divide_by_std(m, {_samples(suffix)}, result_limit, dx, value_limit, h0)"]
    for number, layer in enumerate(network.layers, 1):
        lines += [f"call dense_{number}_{suffix}(m, .false., h{number - 1}, z{number})",
                  *reversed(_norm_derivative(layer, number, suffix, f"z{number}")),
                  _times_slopes(layer.activation, suffix, len(layer.bias), number),
                  *_added(layer, f"h{number - 1}", f"h{number}")]  # fmt: skip
    member = "m, " if network.output_mean is not None else ""
    lines.append(f"call times_std({member}{_samples(suffix)}, value_limit, h{len(network.layers)}, result_limit, dy)")
    return _derivative(network, "tangent_member", suffix, "dx", "dy", _values(network, suffix, "h", "z"), lines)


def _adjoint(network: PortableNetwork, suffix: str) -> str:
    last, member = len(network.layers), "m, " if network.output_mean is not None else ""
    lines = [f"call times_std({member}{_samples(suffix)}, result_limit, dy, value_limit, z{last})"]
    for number in range(last, 0, -1):
        layer = network.layers[number - 1]
        lines += [_times_slopes(layer.activation, suffix, len(layer.bias), number),
                  *_norm_derivative(layer, number, suffix, f"h{number}"),
                  f"call transposed_dense_{number}_{suffix}(m, h{number}, z{number - 1})",
                  *_added(layer, f"z{number}", f"z{number - 1}")]  # fmt: skip
    lines.append(f"call divide_by_std(m, {_samples(suffix)}, 0.0_wp, z0, result_limit, dx)")
    return _derivative(network, "adjoint_member", suffix, "dy", "dx", _values(network, suffix, "z", "h"), lines)


def _normalised(layer: DenseLayer, number: int, suffix: str) -> list[str]:
    if layer.norm is None:
        return []
    kept = (f"normalised_{number}", f"factor_{number}")
    given = f"scale_{number}(:, m), offset_{number}(:, m), z{number}, {', '.join(kept)}"
    return [
        f"call normalise_units({_samples(suffix)}, {len(layer.bias)}, {given})",
        *(f"if (present(slopes)) slopes%{name} = {name}" for name in kept),
    ]


def _added(layer: DenseLayer, values: str, to: str) -> list[str]:
    return [f"{to} = merge(0.0_wp, {to} + {values}, abs({to} + {values}) < value_limit)"] if layer.is_residual else []


def _norm_derivative(layer: DenseLayer, number: int, suffix: str, values: str) -> list[str]:
    """Return the statements of the adjoint; in reverse order they are those of the tangent linear."""
    if layer.norm is None:
        return []
    common, kept = f"{_samples(suffix)}, {len(layer.bias)}", f"slopes%normalised_{number}, slopes%factor_{number}"
    return [
        f"call times_scale({common}, scale_{number}(:, m), {values})",
        f"call through_norm({common}, {kept}, {values})",
    ]


def _times_slopes(activation: str, suffix: str, size: int, number: int) -> str:
    if activation == "none":
        return f"h{number} = merge(0.0_wp, z{number}, abs(z{number}) < value_limit)"
    return f"call times_slopes({_count(suffix, size)}, z{number}, slopes%layer_{number}, h{number})"


def _derivative(
    network: PortableNetwork, what: str, suffix: str, given: str, result: str, local: list[str], lines: list[str]
) -> str:
    declared, slopes = _arguments(suffix, given, result), ""
    if not network.is_linear:
        declared, slopes = [f"    type(slopes_{suffix}), intent(in) :: slopes", *declared], "slopes, "
    return _subroutine(f"{what}_{suffix}", f"m, {slopes}{given}, {result}", declared, local, lines)


def _subroutine(name: str, arguments: str, declared: list[str], local: list[str], lines: list[str]) -> str:
    return "\n".join(
        [f"  pure subroutine {name}({arguments})", "    integer, intent(in) :: m", *declared,
         f"  {statement('real(wp) ::', local)}", *(f"    {line}" for line in lines), f"  end subroutine {name}", ""]
    )  # fmt: skip
