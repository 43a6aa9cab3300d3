"""The Fortran procedures that a model calls: over all members, for one sample, a tile, or a batch in both layouts."""

from __future__ import annotations

from collections.abc import Iterator

from mpitrain.export.source.fortran_fixed import TILES
from mpitrain.export.source.fortran_network import size_of


def member_procedures(suffix: str, has_slopes: bool, is_ensemble: bool) -> Iterator[str]:
    """Yield the four procedures over all members, for one sample or for a tile."""
    slopes = "slopes, " if has_slopes else ""
    forward = f"call forward_member_{suffix}(m, x, unused, slopes)\n      "
    tangent = f"{forward}call tangent_member_{suffix}(m, {slopes}dx, {{}})"
    adjoint = f"{forward}call adjoint_member_{suffix}(m, {slopes}dy, {{}})"
    yield _over_members("forward", suffix, ["x"], "y", f"call forward_member_{suffix}(m, x, {{}})", is_ensemble)
    yield _over_members("tangent_linear", suffix, ["x", "dx"], "dy", tangent, is_ensemble)
    yield _over_members("adjoint", suffix, ["x", "dy"], "dx", adjoint, is_ensemble)
    yield _jacobian(suffix, "" if suffix == "one" else "tile, ", slopes, is_ensemble)


def _over_members(function: str, suffix: str, given: list[str], result: str, calls: str, is_ensemble: bool) -> str:
    """Return one procedure that executes `calls` for each member; {} in `calls` is the place of the result."""
    first, is_forward = "" if suffix == "one" else "tile, ", function == "forward"
    has_status = is_forward and suffix == "one"
    spread = ", spread" if is_ensemble and is_forward else ""
    shapes = {name: f"({first}{size_of(name)})" for name in (*given, result)}
    noted = ", status, worst_input" if has_status else ""
    lines = [f"  pure subroutine {function}_{suffix}({', '.join(shapes)}{spread}{noted})",
             f"    real(wp), intent(in) :: {', '.join(name + shapes[name] for name in given)}",
             f"    real(wp), intent(out) :: {result}{shapes[result]}"]  # fmt: skip
    lines += [f"    real(wp), intent(out), optional :: spread{shapes[result]}"] if spread else []
    lines += ["    integer, intent(out), optional :: status, worst_input"] if has_status else []
    if not is_forward:
        lines += [f"    real(wp) :: unused({first}num_outputs)", f"    type(slopes_{suffix}) :: slopes"]
    if is_ensemble:
        count = size_of(result) if suffix == "one" else f"tile * {size_of(result)}"
        member = "(:, m)" if suffix == "one" else "(:, :, m)"
        lines += [f"    real(wp) :: values({first}{size_of(result)}, num_members)", "    integer :: m",
                  "    do m = 1, num_members", f"      {calls.format(f'values{member}')}", "    end do",
                  f"    call over_members({count}, values, {result}{spread})"]  # fmt: skip
    else:
        lines += ["    integer, parameter :: m = 1", f"    {calls.format(result)}".replace("\n  ", "\n")]
    lines += (
        ["    if (present(status) .or. present(worst_input)) call note_outside_one(x, status, worst_input)"]
        if has_status
        else []
    )
    return "\n".join([*lines, f"  end subroutine {function}_{suffix}", ""])


def _jacobian(suffix: str, first: str, slopes: str, is_ensemble: bool) -> str:
    comma = ":, " if first else ""
    lines = [f"  pure subroutine jacobian_{suffix}(x, y, jac{', spread' if is_ensemble else ''})",
             f"    real(wp), intent(in) :: x({first}num_inputs)",
             f"    real(wp), intent(out) :: y({first}num_outputs), jac({first}num_inputs, num_outputs)"]  # fmt: skip
    if is_ensemble:
        lines.append(f"    real(wp), intent(out), optional :: spread({first}num_inputs, num_outputs)")
    lines += [
        f"    real(wp) :: unit({first}num_outputs)",
        f"    type(slopes_{suffix}) :: slopes{'(num_members)' if is_ensemble else ''}",
    ]
    if not is_ensemble:
        lines += ["    integer, parameter :: m = 1", "    integer :: o",
                  f"    call forward_member_{suffix}(m, x, y, slopes)", "    do o = 1, num_outputs",
                  "      unit = 0.0_wp", f"      unit({comma}o) = 1.0_wp",
                  f"      call adjoint_member_{suffix}(m, {slopes}unit, jac({comma}:, o))", "    end do"]  # fmt: skip
    else:
        count = "{0}" if suffix == "one" else "tile * {0}"
        of_member = slopes.replace("slopes", "slopes(m)")
        lines += [f"    real(wp) :: outputs({first}num_outputs, num_members), values({first}num_inputs, num_members)",
                  "    integer :: m, o", "    do m = 1, num_members",
                  f"      call forward_member_{suffix}(m, x, outputs({comma}:, m), slopes(m))", "    end do",
                  f"    call over_members({count.format('num_outputs')}, outputs, y)", "    do o = 1, num_outputs",
                  "      unit = 0.0_wp", f"      unit({comma}o) = 1.0_wp", "      do m = 1, num_members",
                  f"        call adjoint_member_{suffix}(m, {of_member}unit, values({comma}:, m))", "      end do",
                  "      if (present(spread)) then",
                  f"        call over_members({count.format('num_inputs')}, values, jac({comma}:, o), "
                  f"spread({comma}:, o))",
                  "      else", f"        call over_members({count.format('num_inputs')}, values, jac({comma}:, o))",
                  "      end if", "    end do"]  # fmt: skip
    return "\n".join([*lines, f"  end subroutine jacobian_{suffix}", ""])


def batch_procedures(is_ensemble: bool) -> Iterator[str]:
    """Yield the four procedures of batches in both layouts."""
    spread = ["spread"] if is_ensemble else []
    yield _batch("forward", ["x"], ["y", *spread])
    yield _batch("tangent_linear", ["x", "dx"], ["dy"])
    yield _batch("adjoint", ["x", "dy"], ["dx"])
    yield _batch("jacobian", ["x"], ["y", "jac", *spread])
    yield TILES


def _batch(function: str, given: list[str], results: list[str]) -> str:
    is_jacobian = function == "jacobian"
    cubes = {"jac", "spread"} if is_jacobian else set()
    required = [name for name in results if name != "spread"]
    noted = ["status", "outside", "worst_input"] if function == "forward" else ["status"]
    masked = ["mask"] if function in ("tangent_linear", "adjoint") else []
    rank = {name: "(:, :, :)" if name in cubes else "(:, :)" for name in [*given, *results]}
    lines = [f"  pure subroutine {function}_batch(layout, {', '.join([*given, *results, *noted, *masked])})",
             "    integer, intent(in) :: layout",
             f"    real(wp), intent(in) :: {', '.join(name + rank[name] for name in given)}",
             f"    real(wp), intent(out) :: {', '.join(name + rank[name] for name in required)}"]  # fmt: skip
    if "spread" in results:
        lines.append(f"    real(wp), intent(out), optional :: spread{rank['spread']}")
    lines += [f"    integer, intent(out), optional :: {', '.join(name for name in noted if name != 'outside')}",
              *(["    logical, intent(out), optional :: outside(:)"] if "outside" in noted else []),
              *(["    real(wp), intent(in), optional :: mask(:)", "    real(wp) :: valid(tile)"] if masked else []),
              *(f"    real(wp) :: {name}_tile(tile, {'num_inputs, num_outputs' if name in cubes else size_of(name)})"
                for name in [*given, *results]),
              f"    integer :: first, n{', o' if cubes else ''}",
              *_shape_check(given, results, required, cubes, [*noted, *masked])]  # fmt: skip
    lines += [
        "    do first = 1, n, tile",
        *(f"      call load_tile(layout, first, {name}, {name}_tile)" for name in given),
    ]
    call = f"      call {function}_tile({', '.join(f'{name}_tile' for name in [*given, *results])})"
    lines += _with_mask(function, call) if masked else [call]
    for name in results:
        only = "if (present(spread)) " if name == "spread" else ""
        if name not in cubes:
            lines.append(f"      {only}call store_tile(layout, first, {name}_tile, {name})")
    if cubes:
        lines += ["      do o = 1, num_outputs", *_store_rows(results, cubes), "      end do"]
    lines += ["    end do", f"  end subroutine {function}_batch", ""]
    return "\n".join(lines)


def _with_mask(function: str, call: str) -> Iterator[str]:
    yield "      call load_mask(first, n, valid, mask)"
    yield "      call typical_where_masked(valid, x_tile)"
    is_tangent = function == "tangent_linear"
    yield (
        "      call zero_where_masked(num_inputs, valid, dx_tile)"
        if is_tangent
        else ("      call times_mask(num_outputs, valid, dy_tile)")
    )
    yield call
    yield from ["      call times_mask(num_outputs, valid, dy_tile)"] if is_tangent else []


def _store_rows(results: list[str], cubes: set[str]) -> Iterator[str]:
    for name in (one for one in results if one in cubes):
        only = "if (present(spread)) " if name == "spread" else ""
        yield "        if (layout == inputs_first) then"
        yield f"          {only}call store_tile(layout, first, {name}_tile(:, :, o), {name}(:, o, :))"
        yield "        else"
        yield f"          {only}call store_tile(layout, first, {name}_tile(:, :, o), {name}(:, :, o))"
        yield "        end if"


def _shape_check(
    given: list[str], results: list[str], required: list[str], cubes: set[str], noted: list[str]
) -> Iterator[str]:
    """Yield the statements that reject arrays of wrong shapes, before they are read beyond their ends."""
    yield "    n = -1"
    yield "    if (layout == inputs_first .or. layout == samples_first) n = size(x, 3 - layout)"
    for name in [*given, *results]:
        yield f"    if (n >= 0{' .and. present(spread)' if name == 'spread' else ''}) then"
        if name in cubes:
            yield "      if (layout == inputs_first) then"
            yield f"        if (any(shape({name}) /= [num_inputs, num_outputs, n])) n = -1"
            yield "      else"
            yield f"        if (any(shape({name}) /= [n, num_inputs, num_outputs])) n = -1"
            yield "      end if"
        else:
            yield f"      if (size({name}, layout) /= {size_of(name)} .or. size({name}, 3 - layout) /= n) n = -1"
        yield "    end if"
    for name in ("outside", "mask"):
        if name in noted:
            yield f"    if (n >= 0 .and. present({name})) then"
            yield f"      if (size({name}) /= n) n = -1"
            yield "    end if"
    yield "    if (n < 0) then"
    yield from (f"      {name} = not_a_number()" for name in required)
    yield from (f"      if (present(spread)) {name} = not_a_number()" for name in results if name not in required)
    yield "      if (present(status)) status = -1"
    yield from (["      if (present(outside)) outside = .true.", "      if (present(worst_input)) worst_input = 0"]
                if "outside" in noted else [])  # fmt: skip
    yield "      return"
    yield "    end if"
    reported = [name for name in noted if name != "mask"]
    yield f"    if ({' .or. '.join(f'present({name})' for name in reported)}) &"
    yield f"      call note_outside(layout, x, {', '.join(reported)})"
