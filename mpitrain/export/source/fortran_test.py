"""The self-test in Fortran 2008: expected bits, dot-product test, Taylor test, range, layout."""

from __future__ import annotations

from collections.abc import Iterator

from mpitrain.export.source.emulator import Emulator
from mpitrain.export.source.fortran_numbers import array, kind_of_integer

_MAIN = """\
program {name}_test
  use, intrinsic :: iso_fortran_env, only: real64, ip => {integer}
  use {name}
  use {name}_expected
  implicit none
  integer :: num_failed
  num_failed = 0
  print '(a, 4(i0, a))', '{name}: ', k, ' samples, ', num_inputs, ' inputs, ', num_outputs, ' outputs, ', num_members, &
    ' member(s)'
  call check_one_by_one
  call check_batches(inputs_first, 'batches with inputs first: the bits of single samples')
  call check_batches(samples_first, 'batches with samples first: the bits of single samples')
  call check_dot_product
  call check_taylor
  call check_status
  call check_layouts
  if (num_failed > 0) then
    print '(a, i0, a)', 'FAILED: ', num_failed, ' checks'
    error stop 1
  end if
  print '(a)', 'passed'
contains
  subroutine check(what, holds)
    character(len=*), intent(in) :: what
    logical, intent(in) :: holds
    if (.not. holds) num_failed = num_failed + 1
    print '(a, 2x, a)', merge('ok    ', 'FAILED', holds), what
  end subroutine check

  logical function same(a, b)
    real(wp), intent(in) :: a(:), b(:)
    same = all(transfer(a, [0_ip]) == transfer(b, [0_ip]))
  end function same

  subroutine check_one_by_one
    real(wp) :: y(num_outputs), jac(num_inputs, num_outputs), dy(num_outputs), dx(num_inputs){spread_arrays}
    logical :: same_y, same_j, same_t, same_a
    integer :: s
    same_y = .true.
    same_j = .true.
    same_t = .true.
    same_a = .true.
    do s = 1, k
      call forward(inputs(:, s), y{spread_y})
      same_y = same_y .and. same(y, outputs(:, s)){same_spread_y}
      call jacobian(inputs(:, s), y, jac{spread_j})
      same_j = same_j .and. same(pack(jac, .true.), jacobians(:, s)){same_spread_j}
      call tangent_linear(inputs(:, s), perturbations(:, s), dy)
      same_t = same_t .and. same(dy, tangents(:, s))
      call adjoint(inputs(:, s), sensitivities(:, s), dx)
      same_a = same_a .and. same(dx, adjoints(:, s))
    end do
    call check('forward: the bits of mpitrain predict', same_y)
    call check('jacobian: the bits of mpitrain predict', same_j)
    call check('tangent_linear: the expected bits', same_t)
    call check('adjoint: the expected bits', same_a)
    call check('check_arithmetic', check_arithmetic())
  end subroutine check_one_by_one

  ! Each sample of `values` again and again, in a layout.
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
    integer :: status
    logical :: holds
    allocate (x, source=batch_of(layout, inputs))
    allocate (y, source=0 * batch_of(layout, outputs))
    allocate (dx, source=0 * x)
    allocate (dy, source=0 * y)
    call forward(layout, x, y, status=status)
    holds = status >= 0 .and. same(pack(y, .true.), pack(batch_of(layout, outputs), .true.))
    if (layout == inputs_first) then
      allocate (jac(num_inputs, num_outputs, n))
    else
      allocate (jac(n, num_inputs, num_outputs))
    end if
    call jacobian(layout, x, y, jac)
    holds = holds .and. same(pack(jac, .true.), pack(batch_of(layout, jacobians), .true.))
    call tangent_linear(layout, x, batch_of(layout, perturbations), dy)
    holds = holds .and. same(pack(dy, .true.), pack(batch_of(layout, tangents), .true.))
    call adjoint(layout, x, batch_of(layout, sensitivities), dx)
    holds = holds .and. same(pack(dx, .true.), pack(batch_of(layout, adjoints), .true.))
    if (num_inputs /= n) then
      call forward(3 - layout, x, y, status=status)
      holds = holds .and. status == -1 .and. .not. any(abs(y) >= 0)
    end if
    call check(what, holds)
  end subroutine check_batches

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
    real(wp) :: x(num_inputs, 2), y(num_outputs, 2)
    integer :: status
    logical :: holds
    x(:, 1) = 0.5_wp * input_minimum + 0.5_wp * input_maximum
    x(:, 2) = x(:, 1)
    call forward(x(:, 1), y(:, 1), status=status)
    holds = status == 0
    x(num_inputs, 2) = input_maximum(num_inputs) + input_std(num_inputs)
    call forward(inputs_first, x, y, status=status)
    holds = holds .and. status == 1
    x(1, 1) = transfer(not(0_ip), 0.0_wp)
    call forward(inputs_first, x, y, status=status)
    call check('inputs outside the range of the training data are reported', holds .and. status == 2)
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
    if (num_inputs > 1) then
      x(1, 1) = probe(min(2, num_inputs))
      call check_layout(x, finding, input)
      holds = holds .and. finding == is_other_order .and. input == 1
    end if
    call check_layout(x(:, 2:2) + 0.37_wp * input_std(1), finding)
    call check('check_layout tells layouts, orders and units', holds .and. finding < 0)
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
    yield "! Self-test: the bits of mpitrain predict for samples of the training data, tangent linear and adjoint."
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
        "dot_limit": "1e-14" if is_double else "1e-6",
        "taylor": _SLOPE if is_double and emulator.is_smooth else _DIFFERENCE.format(power=16 if is_double else 8),
        "spread_arrays": ", &\n      spread_y(num_outputs), spread_j(num_inputs, num_outputs)",
        "spread_y": ", spread_y",
        "spread_j": ", spread_j",
        "same_spread_y": " .and. same(spread_y, output_spread(:, s))",
        "same_spread_j": " .and. &\n        same(pack(spread_j, .true.), jacobian_spread(:, s))",
    }
    return _MAIN.format(**{key: value if is_ensemble or "spread" not in key else "" for key, value in text.items()})
