"""The self-test in Fortran 2008: expected bits, dot-product test, Taylor test, range, layout."""

from __future__ import annotations

from collections.abc import Iterator

from mpitrain.export.source.emulator import Emulator
from mpitrain.export.source.fortran_numbers import array, kind_of_integer
from mpitrain.export.source.words import FORTRAN_FLAG

_MAIN = """\
program {name}_test
  use, intrinsic :: iso_fortran_env, only: real64, ip => {integer}
  use, intrinsic :: ieee_exceptions, only: ieee_invalid, ieee_set_flag, ieee_set_halting_mode, &
    ieee_support_halting
  use {name}
  use {name}_expected
  implicit none
  ! Differences below this fraction of the largest expected value are attributed to another order of operations.
  real(real64), parameter :: rounding_limit = {rounding_limit}_real64
  integer :: num_failed, num_other_bits
  real(real64) :: largest_difference
  num_failed = 0
  num_other_bits = 0
  largest_difference = 0
  print '(a, 4(i0, a))', '{name}: ', k, ' samples, ', &
    num_inputs, ' inputs, ', num_outputs, ' outputs, ', num_members, ' member(s)'
  call check_one_by_one
  call check_batches(inputs_first, 'batches with inputs first: the bits of single samples')
  call check_batches(samples_first, 'batches with samples first: the bits of single samples')
  call check_masked(inputs_first, 'masks and Jacobian entries with inputs first: same as without mask')
  call check_masked(samples_first, 'masks and Jacobian entries with samples first: same as without mask')
  call check_dot_product
  call check_taylor
  call check_status
  call check_layouts
  if (num_failed > 0) then
    print '(a, i0, a)', 'FAILED: ', num_failed, ' checks'
    if (.not. check_arithmetic()) print '(2a)', 'compile {name}.f90 with ', &
      '{flags}, and try again'
    error stop 1
  end if
  if (num_other_bits > 0) then
    print '(a, i0, a, es8.1, a)', 'OTHER BITS: ', num_other_bits, ' checks; the numbers are right to ', &
      largest_difference, ' of the largest one, but not the bits of mpitrain predict:'
    print '(a)', 'the compiler fused or reordered operations; compile {name}.f90 with', &
      '{flags}'
    error stop 2
  end if
  print '(a)', 'passed'
contains
  subroutine check(what, holds)
    character(len=*), intent(in) :: what
    logical, intent(in) :: holds
    if (.not. holds) num_failed = num_failed + 1
    print '(a, 2x, a)', merge('ok    ', 'FAILED', holds), what
  end subroutine check

  ! Return the largest difference, as a fraction of the largest expected value; 0 for equal bits.
  real(real64) function difference_of(found, expected)
    real(wp), intent(in) :: found(:), expected(:)
    difference_of = 0
    if (all(transfer(found, [0_ip]) == transfer(expected, [0_ip]))) return
    difference_of = huge(difference_of)
    if (.not. all(abs(found) <= huge(found))) return
    difference_of = maxval(abs(real(found, real64) - real(expected, real64))) / &
      max(maxval(abs(real(expected, real64))), tiny(1.0_real64))
    ! Not 0 if only the sign of a zero differs.
    difference_of = max(difference_of, epsilon(1.0_real64)**2)
  end function difference_of

  subroutine check_bits(what, difference)
    character(len=*), intent(in) :: what
    real(real64), intent(in) :: difference
    if (difference > 0 .and. difference <= rounding_limit) then
      num_other_bits = num_other_bits + 1
      largest_difference = max(largest_difference, difference)
      print '(3a, es9.1, a)', 'OTHER   ', what, ': other bits, by', difference, ' of the largest value'
    else
      call check(what, difference <= 0)
    end if
  end subroutine check_bits

  subroutine check_one_by_one
    real(wp) :: y(num_outputs), jac(num_inputs, num_outputs), dy(num_outputs), dx(num_inputs){spread_arrays}
    real(real64) :: of_y, of_j, of_t, of_a
    integer :: s
    of_y = 0
    of_j = 0
    of_t = 0
    of_a = 0
    do s = 1, k
      call forward(inputs(:, s), y{spread_y})
      of_y = max(of_y, difference_of(y, outputs(:, s)){of_spread_y})
      call jacobian(inputs(:, s), y, jac{spread_j})
      of_j = max(of_j, difference_of(pack(jac, .true.), jacobians(:, s)){of_spread_j})
      call tangent_linear(inputs(:, s), perturbations(:, s), dy)
      of_t = max(of_t, difference_of(dy, tangents(:, s)))
      call adjoint(inputs(:, s), sensitivities(:, s), dx)
      of_a = max(of_a, difference_of(dx, adjoints(:, s)))
    end do
    call check_bits('forward: the bits of mpitrain predict', of_y)
    call check_bits('jacobian: the bits of mpitrain predict', of_j)
    call check_bits('tangent_linear: the expected bits', of_t)
    call check_bits('adjoint: the expected bits', of_a)
    if (max(of_y, of_j, of_t, of_a) <= 0) call check('check_arithmetic', check_arithmetic())
  end subroutine check_one_by_one

  ! Return a batch of n samples in a layout: those of `values`, repeated.
  function batch_of(layout, values) result(batch)
    integer, intent(in) :: layout
    real(wp), intent(in) :: values(:, :)
    real(wp), allocatable :: batch(:, :)
    integer :: s
    if (layout == inputs_first) then
      allocate (batch(size(values, 1), n))
    else
      allocate (batch(n, size(values, 1)))
    end if
    do s = 1, n
      if (layout == inputs_first) then
        batch(:, s) = values(:, mod(s - 1, k) + 1)
      else
        batch(s, :) = values(:, mod(s - 1, k) + 1)
      end if
    end do
  end function batch_of

  subroutine check_batches(layout, what)
    integer, intent(in) :: layout
    character(len=*), intent(in) :: what
    real(wp), allocatable :: x(:, :), y(:, :), jac(:, :, :), dy(:, :), dx(:, :)
    real(real64) :: difference
    integer :: status
    logical :: holds
    allocate (x, source=batch_of(layout, inputs))
    allocate (y, source=0 * batch_of(layout, outputs))
    allocate (dx, source=0 * x)
    allocate (dy, source=0 * y)
    call forward(layout, x, y, status=status)
    holds = status >= 0
    difference = difference_of(pack(y, .true.), pack(batch_of(layout, outputs), .true.))
    if (layout == inputs_first) then
      allocate (jac(num_inputs, num_outputs, n))
    else
      allocate (jac(n, num_inputs, num_outputs))
    end if
    call jacobian(layout, x, y, jac)
    difference = max(difference, difference_of(pack(jac, .true.), pack(batch_of(layout, jacobians), .true.)))
    call tangent_linear(layout, x, batch_of(layout, perturbations), dy)
    difference = max(difference, difference_of(pack(dy, .true.), pack(batch_of(layout, tangents), .true.)))
    call adjoint(layout, x, batch_of(layout, sensitivities), dx)
    difference = max(difference, difference_of(pack(dx, .true.), pack(batch_of(layout, adjoints), .true.)))
    if (num_inputs /= n) then
      call forward(3 - layout, x, y, status=status)
      ! NaN is found by its bits: a comparison with NaN may stop the program.
      holds = holds .and. status == -1 .and. &
        all(iand(transfer(pack(y, .true.), [0_ip]), huge(0_ip)) > transfer(huge(1.0_wp), 0_ip))
    end if
    if (.not. holds) difference = huge(difference)
    call check_bits(what, difference)
  end subroutine check_batches

  ! Every third sample is masked: results are 0 there, with the expected bits elsewhere. Entries of one column are close
  ! to those of rows.
  subroutine check_masked(layout, what)
    integer, intent(in) :: layout
    character(len=*), intent(in) :: what
    real(wp), allocatable :: x(:, :), result(:, :), back(:, :), row(:, :), column(:, :)
    real(wp) :: mask(n)
    real(real64) :: difference
    integer :: s, status
    logical :: holds
    mask = [(merge(0.0_wp, 1.0_wp, mod(s, 3) == 1), s = 1, n)]
    allocate (x, source=batch_of(layout, inputs))
    allocate (result, column, source=0 * batch_of(layout, outputs))
    allocate (back, row, source=0 * x)
    call tangent_linear(layout, x, batch_of(layout, perturbations), result, mask=mask)
    difference = difference_of(pack(result, .true.), pack(masked(layout, tangents, mask), .true.))
    call adjoint(layout, x, batch_of(layout, sensitivities), back, mask=mask)
    difference = max(difference, difference_of(pack(back, .true.), pack(masked(layout, adjoints, mask), .true.)))
    call jac_pairs(layout, x, [(1, s = 1, num_inputs)], [(s, s = 1, num_inputs)], row, mask, status)
    difference = max(difference, &
      difference_of(pack(row, .true.), pack(masked(layout, jacobians(:num_inputs, :), mask), .true.)))
    call check_bits(what, difference)
    holds = status == 0
    call jac_pairs(layout, x, [(s, s = 1, num_outputs)], [(1, s = 1, num_outputs)], column, mask)
    result = masked(layout, jacobians(1::num_inputs, :), mask)
    holds = holds .and. maxval(abs(column - result)) <= 1e-5_wp * maxval(abs(jacobians))
    call jac_pairs(layout, x, [num_outputs + 1], [1], column, mask, status)
    if (.not. (holds .and. status == -1)) call check('jac_pairs of a column, and of a row out of range', .false.)
  end subroutine check_masked

  function masked(layout, values, mask) result(batch)
    integer, intent(in) :: layout
    real(wp), intent(in) :: values(:, :), mask(:)
    real(wp), allocatable :: batch(:, :)
    integer :: s
    allocate (batch, source=batch_of(layout, values))
    do s = 1, n
      if (mask(s) > 0.0_wp) cycle
      if (layout == inputs_first) then
        batch(:, s) = 0
      else
        batch(s, :) = 0
      end if
    end do
  end function masked

  ! <K dx, dy> = <dx, K^T dy>, relative to |K dx| |dy|, over all samples.
  subroutine check_dot_product
    real(wp) :: tangent(num_outputs), back(num_inputs)
    real(real64) :: left, right, size_y, size_dy, difference
    integer :: s
    left = 0
    right = 0
    size_y = 0
    size_dy = 0
    do s = 1, k
      call tangent_linear(inputs(:, s), perturbations(:, s), tangent)
      call adjoint(inputs(:, s), sensitivities(:, s), back)
      left = left + sum(real(tangent, real64) * real(sensitivities(:, s), real64))
      right = right + sum(real(back, real64) * real(perturbations(:, s), real64))
      size_y = size_y + sum(real(tangent, real64)**2)
      size_dy = size_dy + sum(real(sensitivities(:, s), real64)**2)
    end do
    difference = abs(left - right) / (sqrt(size_y) * sqrt(size_dy) + tiny(left))
    print '(8x, a, es8.1, a)', '<K dx, dy> - <dx, K^T dy> is ', difference, ' of |K dx| |dy|'
    call check('dot-product test', difference <= {dot_limit}_real64)
  end subroutine check_dot_product

  ! |f(x + h dx) - f(x) - h K dx| over all samples.
  real(real64) function remainder_of(h)
    real(wp), intent(in) :: h
    real(wp) :: y(num_outputs), moved(num_outputs), tangent(num_outputs)
    integer :: s
    remainder_of = 0
    do s = 1, k
      call forward(inputs(:, s), y)
      call forward(inputs(:, s) + h * perturbations(:, s), moved)
      call tangent_linear(inputs(:, s), perturbations(:, s), tangent)
      remainder_of = remainder_of + sum((real(moved, real64) - real(y, real64) - h * real(tangent, real64))**2)
    end do
    remainder_of = sqrt(remainder_of)
  end function remainder_of

  subroutine check_taylor
    real(real64) :: found, length
    length = sqrt(sum(real(tangents, real64)**2))
{taylor}
  end subroutine check_taylor

  subroutine check_status
    real(wp) :: x(num_inputs, 3), y(num_outputs, 3)
    integer :: status, input
    logical :: holds, outside(3)
    x(:, 1) = 0.5_wp * input_minimum + 0.5_wp * input_maximum
    x(:, 2) = x(:, 1)
    x(:, 3) = x(:, 1)
    call forward(x(:, 1), y(:, 1), status=status, worst_input=input)
    holds = status == 0 .and. input == 0
    x(num_inputs, 2) = input_maximum(num_inputs) + input_std(num_inputs)
    call forward(inputs_first, x, y, status=status, outside=outside, worst_input=input)
    holds = holds .and. status == 1 .and. input == num_inputs .and. all(outside .eqv. [.false., .true., .false.])
    ! This NaN is intended, but the program may be compiled to stop at invalid operations.
    if (ieee_support_halting(ieee_invalid)) call ieee_set_halting_mode(ieee_invalid, .false.)
    x(1, 3) = transfer(not(0_ip), 0.0_wp)
    call forward(inputs_first, x, y, status=status, outside=outside, worst_input=input)
    holds = holds .and. status == 2 .and. input == 1 .and. all(outside .eqv. [.false., .true., .true.])
    if (ieee_support_halting(ieee_invalid)) call ieee_set_flag(ieee_invalid, .false.)
    call check('inputs outside the range of the training data are reported', holds)
  end subroutine check_status

  subroutine check_layouts
    real(wp) :: x(num_inputs, num_inputs + 1)
    integer :: finding, input
    logical :: holds
    x = spread(probe, 2, num_inputs + 1)
    call check_layout(x, finding, input)
    holds = finding == is_inputs_first .and. input == 0
    call check_layout(transpose(x), finding, input)
    holds = holds .and. finding == is_samples_first
    x(1, 1) = probe(1) + 273.15_wp
    call check_layout(x, finding, input)
    holds = holds .and. finding == is_other_units .and. input == 1
    if ({unlike_first} > 1) then
      x(1, 1) = probe({unlike_first})
      call check_layout(x, finding, input)
      holds = holds .and. finding == is_other_order .and. input == 1
    end if
    call check_layout(x(:, 2:2) + 0.37_wp * input_std(1), finding)
    call check('check_layout recognises layouts, orders and units', holds .and. finding < 0)
  end subroutine check_layouts
end program {name}_test
"""
_SLOPE = """\
    found = log(remainder_of(2.0_wp**(-7)) / remainder_of(2.0_wp**(-8))) / log(2.0_real64)
    print '(8x, a, f6.3)', 'the Taylor remainder has slope ', found
    call check('Taylor test: slope 2', length > 0 .and. found > 1.9_real64 .and. found < 2.1_real64)"""
_DIFFERENCE = """\
    found = remainder_of(2.0_wp**(-{power})) / (2.0_real64**(-{power}) * length)
    print '(8x, a, es8.1, a)', 'finite differences differ by ', found, ' of the tangent linear'
    call check('Taylor test: finite differences agree', length > 0 .and. found < 0.1_real64)"""
_ARRAYS = {
    "inputs": "num_inputs", "outputs": "num_outputs", "jacobian": "num_inputs * num_outputs",
    "perturbations": "num_inputs", "tangent": "num_outputs", "sensitivities": "num_outputs", "adjoint": "num_inputs",
    "output_spread": "num_outputs", "jacobian_spread": "num_inputs * num_outputs",
}  # fmt: skip
_NAMES = {"jacobian": "jacobians", "tangent": "tangents", "adjoint": "adjoints"}


def test_program(emulator: Emulator) -> Iterator[str]:
    """Yield the self-test: a module of expected numbers, and the program."""
    name, count = emulator.name, len(emulator.expected.inputs)
    yield "! Self-test: the bits of mpitrain predict for samples of the training data; tangent linear and adjoint."
    yield f"module {name}_expected"
    yield f"  use {name}, only: wp, num_inputs, num_outputs\n  implicit none\n  public"
    yield f"  integer, parameter :: k = {count}, n = 3 * k + 5"
    for field, size in _ARRAYS.items():
        values = getattr(emulator.expected, field)
        if values is not None:
            known = _NAMES.get(field, field)
            yield from array(f"all_{known}", values)
            yield f"  real(wp), parameter :: {known}({size}, k) = reshape(all_{known}, [{size}, k])"
    yield f"end module {name}_expected\n"
    yield _program(emulator)


def _program(emulator: Emulator) -> str:
    is_double, is_ensemble = emulator.network.dtype == "float64", emulator.is_ensemble
    text = {
        "name": emulator.name,
        "integer": kind_of_integer(emulator.network.dtype),
        "rounding_limit": "1e-10" if is_double else "1e-3",
        "unlike_first": str(emulator.first_distinct_input + 1),
        "flags": f"{FORTRAN_FLAG} and without -Ofast or -ffast-math",
        "dot_limit": "1e-14" if is_double else "1e-6",
        "taylor": _SLOPE if is_double and emulator.is_smooth else _DIFFERENCE.format(power=16 if is_double else 8),
        "spread_arrays": ", &\n      spread_y(num_outputs), spread_j(num_inputs, num_outputs)",
        "spread_y": ", spread_y",
        "spread_j": ", spread_j",
        "of_spread_y": ", &\n        difference_of(spread_y, output_spread(:, s))",
        "of_spread_j": ", &\n        difference_of(pack(spread_j, .true.), jacobian_spread(:, s))",
    }
    return _MAIN.format(**{key: value if is_ensemble or "spread" not in key else "" for key, value in text.items()})
