"""Masks of batches, and single entries of the Jacobian, in Fortran."""

from __future__ import annotations

from collections.abc import Iterator

_MASKS = """\
  ! Load the masks of samples first, first + 1, ...; 1 without a mask.
  pure subroutine load_mask(first, n, valid, mask)
    integer, intent(in) :: first, n
    real(wp), intent(out) :: valid(tile)
    real(wp), intent(in), optional :: mask(:)
    integer :: b
    valid = 1.0_wp
    if (.not. present(mask)) return
    do b = 1, tile
      valid(b) = mask(min(first + b - 1, n))
    end do
  end subroutine load_mask

  ! Values at masked samples may be NaN: replace them by mean inputs (and perturbations by 0).
  pure subroutine typical_where_masked(valid, x)
    real(wp), intent(in) :: valid(tile)
    real(wp), intent(inout) :: x(tile, num_inputs)
    integer :: i
    do i = 1, num_inputs
      where (.not. abs(valid) > 0.0_wp) x(:, i) = input_mean(i)
    end do
  end subroutine typical_where_masked

  pure subroutine zero_where_masked(count, valid, values)
    integer, intent(in) :: count
    real(wp), intent(in) :: valid(tile)
    real(wp), intent(inout) :: values(tile, count)
    integer :: v
    do v = 1, count
      where (.not. abs(valid) > 0.0_wp) values(:, v) = 0.0_wp
    end do
  end subroutine zero_where_masked

  pure subroutine times_mask(count, valid, values)
    integer, intent(in) :: count
    real(wp), intent(in) :: valid(tile)
    real(wp), intent(inout) :: values(tile, count)
    integer :: v
    call zero_where_masked(count, valid, values)
    do v = 1, count
      values(:, v) = values(:, v) * valid
    end do
  end subroutine times_mask
"""
_PAIRS = """\
  ! Set pairs(p, s), or pairs(s, p) with samples first, to the derivative of output rows(p) by input columns(p) at
  ! sample s, times its mask. The cost is that of the distinct rows or of the distinct columns, whichever are fewer.
  pure subroutine jac_pairs(layout, x, rows, columns, pairs, mask, status)
    integer, intent(in) :: layout, rows(:), columns(:)
    real(wp), intent(in) :: x(:, :)
    real(wp), intent(out) :: pairs(:, :)
    real(wp), intent(in), optional :: mask(:)
    integer, intent(out), optional :: status
    real(wp) :: valid(tile), x_tile(tile, num_inputs), y_tile(tile, num_outputs)
    real(wp) :: inputs_unit(tile, num_inputs), outputs_unit(tile, num_outputs)
    real(wp) :: row(tile, num_inputs), column(tile, num_outputs)
    real(wp) :: {values}
    type(slopes_tile) :: slopes(num_members)
    logical :: has_row(num_outputs), has_column(num_inputs)
    integer :: first, n, o, i, m
    n = -1
    if (layout == inputs_first .or. layout == samples_first) n = size(x, 3 - layout)
    if (n >= 0) then
      if (size(x, layout) /= num_inputs .or. size(rows) /= size(columns)) n = -1
      if (size(pairs, layout) /= size(rows) .or. size(pairs, 3 - layout) /= n) n = -1
      if (any(rows < 1) .or. any(rows > num_outputs) .or. any(columns < 1) .or. any(columns > num_inputs)) n = -1
    end if
    if (present(mask)) then
      if (size(mask) /= n) n = -1
    end if
    if (present(status)) status = min(n, 0)
    if (n < 0) then
      pairs = not_a_number()
      return
    end if
    has_row = [(any(rows == o), o = 1, num_outputs)]
    has_column = [(any(columns == i), i = 1, num_inputs)]
    do first = 1, n, tile
      call load_mask(first, n, valid, mask)
      call load_tile(layout, first, x, x_tile)
      call typical_where_masked(valid, x_tile)
      do m = 1, num_members
        call forward_member_tile(m, x_tile, y_tile, slopes(m))
      end do
      if (count(has_row) <= count(has_column)) then
        do o = 1, num_outputs
          if (.not. has_row(o)) cycle
          outputs_unit = 0.0_wp
          outputs_unit(:, o) = 1.0_wp
{of_row}
          call times_mask(num_inputs, valid, row)
          call store_pairs(layout, first, o, rows, columns, row, pairs)
        end do
      else
        do i = 1, num_inputs
          if (.not. has_column(i)) cycle
          inputs_unit = 0.0_wp
          inputs_unit(:, i) = 1.0_wp
{of_column}
          call times_mask(num_outputs, valid, column)
          call store_pairs(layout, first, i, columns, rows, column, pairs)
        end do
      end if
    end do
  end subroutine jac_pairs

  ! Store the values of one line (a row or a column) in the pairs that request its entries.
  pure subroutine store_pairs(layout, first, line, lines, entries, values, pairs)
    integer, intent(in) :: layout, first, line, lines(:), entries(:)
    real(wp), intent(in) :: values(:, :)
    real(wp), intent(inout) :: pairs(:, :)
    integer :: p
    do p = 1, size(lines)
      if (lines(p) /= line) cycle
      if (layout == inputs_first) then
        call store_tile(layout, first, values(:, entries(p):entries(p)), pairs(p:p, :))
      else
        call store_tile(layout, first, values(:, entries(p):entries(p)), pairs(:, p:p))
      end if
    end do
  end subroutine store_pairs
"""


def masked_procedures(has_slopes: bool, is_ensemble: bool) -> Iterator[str]:
    """Yield the procedures for masks and for entries of the Jacobian."""
    yield _MASKS
    slopes = "slopes(m), " if has_slopes else ""
    calls = {}
    for name, function, given, size in (
        ("row", "adjoint", "outputs_unit", "num_inputs"),
        ("column", "tangent", "inputs_unit", "num_outputs"),
    ):
        member = f"call {function}_member_tile(m, {slopes}{given}, {{}})"
        if is_ensemble:
            lines = [
                "do m = 1, num_members",
                f"  {member.format(f'values(:, 1:{size}, m)')}",
                "end do",
                f"call over_members(tile * {size}, values(:, 1:{size}, :), {name})",
            ]
        else:
            lines = [member.format(name).replace("(m", "(1").replace("slopes(m)", "slopes(1)")]
        calls[f"of_{name}"] = "\n".join(f"          {line}" for line in lines)
    values = "values(tile, max(num_inputs, num_outputs), num_members)"
    text = _PAIRS.format(values=values, **calls)
    yield text if is_ensemble else text.replace(f"    real(wp) :: {values}\n", "")
