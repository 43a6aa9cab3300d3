"""Fortran procedures that are the same for every network: normalisation, outputs, ensembles, checks, tiles."""

from __future__ import annotations

from collections.abc import Iterator

# Division by, or multiplication with, standard deviations.
_BY_STD = """\
  pure subroutine {name}(m, samples, least, values, limit, {result})
    integer, intent(in) :: m, samples
    real(wp), intent(in) :: least, values(samples, {count}), limit
    real(wp), intent(out) :: {result}(samples, {count})
    real(wp) :: {term}
    integer :: {i}, k
    do {i} = 1, {count}
      !GCC$ unroll 1
      do k = 1, samples
        {term} = merge(0.0_wp, values(k, {i}), abs(values(k, {i})) < least) {by_std}({i}, m)
        {result}(k, {i}) = merge(0.0_wp, {term}, abs({term}) < limit)
      end do
    end do
  end subroutine {name}
"""
_NORMALISE = """\
  pure subroutine normalise(m, samples, x, h)
    integer, intent(in) :: m, samples
    real(wp), intent(in) :: x(samples, num_inputs)
    real(wp), intent(out) :: h(samples, num_inputs)
    real(wp) :: difference, quotient
    integer :: i, k
    do i = 1, num_inputs
      !GCC$ unroll 1
      do k = 1, samples
        difference = merge(0.0_wp, x(k, i), abs(x(k, i)) < sum_limit) - member_input_mean(i, m)
        quotient = difference / member_input_std(i, m)
        h(k, i) = merge(0.0_wp, quotient, abs(quotient) < value_limit)
      end do
    end do
  end subroutine normalise

""" + _BY_STD.format(
    name="divide_by_std", result="quotients", count="num_inputs", term="quotient", i="i", by_std="/ member_input_std"
)
_TIMES_SLOPES = """\
  pure subroutine times_slopes(count, sums, slopes, h)
    integer, intent(in) :: count
    real(wp), intent(in) :: sums(count), slopes(count)
    real(wp), intent(out) :: h(count)
    real(wp) :: term
    integer :: k
    do k = 1, count
      term = sums(k) * slopes(k)
      h(k) = merge(0.0_wp, term, abs(term) < value_limit)
    end do
  end subroutine times_slopes
"""
_OUTPUTS = """\
  pure subroutine to_physical(m, samples, h, y)
    integer, intent(in) :: m, samples
    real(wp), intent(in) :: h(samples, num_outputs)
    real(wp), intent(out) :: y(samples, num_outputs)
    real(wp) :: term
    integer :: o, k
    do o = 1, num_outputs
      !GCC$ unroll 1
      do k = 1, samples
        term = h(k, o) * member_output_std(o, m)
        y(k, o) = merge(0.0_wp, term, abs(term) < sum_limit) + member_output_mean(o, m)
      end do
    end do
  end subroutine to_physical

""" + _BY_STD.format(
    name="times_std", result="products", count="num_outputs", term="term", i="o", by_std="* member_output_std"
)
_PLAIN_OUTPUTS = """\
  pure subroutine to_physical(samples, h, y)
    integer, intent(in) :: samples
    real(wp), intent(in) :: h(samples, num_outputs)
    real(wp), intent(out) :: y(samples, num_outputs)
    y = h
  end subroutine to_physical

  pure subroutine times_std(samples, least, values, limit, products)
    integer, intent(in) :: samples
    real(wp), intent(in) :: least, values(samples, num_outputs), limit
    real(wp), intent(out) :: products(samples, num_outputs)
    products = merge(0.0_wp, values, abs(values) < max(least, limit))
  end subroutine times_std
"""
_OVER_MEMBERS = """\
  ! Return mean and standard deviation over the members, summed in their order.
  pure subroutine over_members(count, values, mean, spread)
    integer, intent(in) :: count
    real(wp), intent(in) :: values(count, num_members)
    real(wp), intent(out) :: mean(count)
    real(wp), intent(out), optional :: spread(count)
    real(wp) :: total, quotient, center, difference, deviation, square
    integer :: k, m
    do k = 1, count
      total = merge(0.0_wp, values(k, 1), abs(values(k, 1)) < sum_limit)
      do m = 2, num_members
        total = total + merge(0.0_wp, values(k, m), abs(values(k, m)) < sum_limit)
      end do
      quotient = total / real(num_members, wp)
      mean(k) = merge(0.0_wp, quotient, abs(quotient) < result_limit)
    end do
    if (.not. present(spread)) return
    do k = 1, count
      center = merge(0.0_wp, mean(k), abs(mean(k)) < sum_limit)
      total = 0.0_wp
      do m = 1, num_members
        difference = merge(0.0_wp, values(k, m), abs(values(k, m)) < sum_limit) - center
        deviation = merge(0.0_wp, difference, abs(difference) < deviation_limit)
        square = deviation * deviation
        total = total + square
      end do
      spread(k) = sqrt(total / real(num_members - 1, wp))
    end do
  end subroutine over_members
"""
_CHECKS = """\
  ! Return how far a value of input i lies outside the range of the training data, in standard deviations; 0 inside.
  ! If the input was constant there, values within 0.001 standard deviations count as inside. NaN is found by its bits,
  ! because compiler flags may assume that there is none.
  pure real(wp) function excess_of(value, i)
    real(wp), intent(in) :: value
    integer, intent(in) :: i
    if (iand(transfer(value, 0_ip), huge(0_ip)) > infinity_bits) then
      excess_of = huge(value)
    else
      excess_of = max(input_minimum(i) - value, value - input_maximum(i), 0.0_wp) / input_std(i)
      if (excess_of < 0.001_wp .and. .not. input_maximum(i) > input_minimum(i)) excess_of = 0.0_wp
    end if
  end function excess_of

  pure subroutine note_outside_one(x, status, worst_input)
    real(wp), intent(in) :: x(num_inputs)
    integer, intent(out), optional :: status, worst_input
    real(wp) :: excess, largest
    integer :: i, worst
    largest = 0.0_wp
    worst = 0
    do i = 1, num_inputs
      excess = excess_of(x(i), i)
      if (excess > largest) then
        largest = excess
        worst = i
      end if
    end do
    if (present(status)) status = merge(1, 0, worst > 0)
    if (present(worst_input)) worst_input = worst
  end subroutine note_outside_one

  ! Count the samples with an input outside the range of the training data, or NaN; return which these are, and the
  ! input that lies farthest outside (0: none).
  pure subroutine note_outside(layout, x, status, outside, worst_input)
    integer, intent(in) :: layout
    real(wp), intent(in) :: x(:, :)
    integer, intent(out), optional :: status, worst_input
    logical, intent(out), optional :: outside(:)
    real(wp) :: excess, largest
    integer :: s, i, worst, count_outside
    logical :: is_outside
    largest = 0.0_wp
    worst = 0
    count_outside = 0
    do s = 1, size(x, 3 - layout)
      is_outside = .false.
      do i = 1, num_inputs
        if (layout == inputs_first) then
          excess = excess_of(x(i, s), i)
        else
          excess = excess_of(x(s, i), i)
        end if
        if (excess > 0.0_wp) is_outside = .true.
        if (excess > largest) then
          largest = excess
          worst = i
        end if
      end do
      if (is_outside) count_outside = count_outside + 1
      if (present(outside)) outside(s) = is_outside
    end do
    if (present(status)) status = count_outside
    if (present(worst_input)) worst_input = worst
  end subroutine note_outside

  pure elemental real(wp) function not_a_number()
    not_a_number = transfer(not(0_ip), 0.0_wp)
  end function not_a_number

  ! Check how a model packs its fields: x(:, :) contains the probe in 2 samples or more, packed by the model. finding is
  ! is_inputs_first or is_samples_first, is_either if both are possible, or negative for a mistake; input is then the
  ! number of the first wrong input.
  pure subroutine check_layout(x, finding, input)
    real(wp), intent(in) :: x(:, :)
    integer, intent(out) :: finding
    integer, intent(out), optional :: input
    integer :: by_inputs, by_samples, wrong, of_samples, i
    real(wp) :: value, value_of_samples, expected, margin
    call count_mismatches(x, inputs_first, by_inputs, wrong, value)
    call count_mismatches(x, samples_first, by_samples, of_samples, value_of_samples)
    if (present(input)) input = 0
    if (by_inputs == 0 .and. by_samples == 0) then
      finding = is_either
    else if (by_inputs == 0) then
      finding = is_inputs_first
    else if (by_samples == 0) then
      finding = is_samples_first
    else
      if (by_samples < by_inputs) then
        wrong = of_samples
        value = value_of_samples
      end if
      if (present(input)) input = wrong
      finding = is_wrong
      do i = 1, num_conversions
        expected = probe(max(wrong, 1)) * conversion_factor(i)
        margin = probe_tolerance(max(wrong, 1)) * (abs(conversion_factor(i)) + 1.0_wp)
        if (abs(value - (expected + conversion_summand(i))) <= margin) finding = is_other_units
      end do
      do i = 1, num_inputs
        if (abs(value - probe(i)) <= probe_tolerance(i)) finding = is_other_order
      end do
    end if
  end subroutine check_layout

  pure subroutine count_mismatches(x, layout, mismatches, input, value)
    real(wp), intent(in) :: x(:, :)
    integer, intent(in) :: layout
    integer, intent(out) :: mismatches, input
    real(wp), intent(out) :: value
    real(wp) :: given
    integer :: s, i
    mismatches = 0
    input = 0
    value = 0.0_wp
    if (size(x, layout) /= num_inputs) then
      mismatches = huge(mismatches)
      return
    end if
    do s = 1, size(x, 3 - layout)
      do i = 1, num_inputs
        if (layout == inputs_first) then
          given = x(i, s)
        else
          given = x(s, i)
        end if
        if (abs(given - probe(i)) <= probe_tolerance(i)) cycle
        if (mismatches == 0) then
          input = i
          value = given
        end if
        mismatches = mismatches + 1
      end do
    end do
  end subroutine count_mismatches

  pure function describe(finding) result(words)
    integer, intent(in) :: finding
    character(len=50) :: words
    select case (finding)
    case (is_inputs_first)
      words = 'inputs first: x(inputs, samples)'
    case (is_samples_first)
      words = 'samples first: x(samples, inputs)'
    case (is_either)
      words = 'both layouts would fit'
    case (is_other_order)
      words = 'the inputs are in another order, or are shifted'
    case (is_other_units)
      words = 'an input is in other units'
    case default
      words = 'an input has another value, or the shape is wrong'
    end select
  end function describe

  ! Return whether this build computes the bits of mpitrain predict: not if the compiler fused or reordered operations.
  pure logical function check_arithmetic()
    real(wp) :: y(num_outputs), jac(num_inputs, num_outputs)
    call jacobian_one(probe, y, jac)
    check_arithmetic = all(transfer(y, [0_ip]) == transfer(probe_outputs, [0_ip])) .and. &
      all(transfer(jac, [0_ip]) == transfer(probe_jacobian, [0_ip]))
  end function check_arithmetic
"""
TILES = """\
  ! Load values (tile, num_values) of samples first, first + 1, ...; a short last tile repeats the last sample.
  pure subroutine load_tile(layout, first, batch, values)
    integer, intent(in) :: layout, first
    real(wp), intent(in) :: batch(:, :)
    real(wp), intent(out) :: values(:, :)
    integer :: b, s
    do b = 1, tile
      s = min(first + b - 1, size(batch, 3 - layout))
      if (layout == inputs_first) then
        values(b, :) = batch(:, s)
      else
        values(b, :) = batch(s, :)
      end if
    end do
  end subroutine load_tile

  pure subroutine store_tile(layout, first, values, batch)
    integer, intent(in) :: layout, first
    real(wp), intent(in) :: values(:, :)
    real(wp), intent(inout) :: batch(:, :)
    integer :: b
    do b = 1, min(tile, size(batch, 3 - layout) - first + 1)
      if (layout == inputs_first) then
        batch(:, first + b - 1) = values(b, :)
      else
        batch(first + b - 1, :) = values(b, :)
      end if
    end do
  end subroutine store_tile
"""


def fixed_procedures(has_outputs: bool, is_ensemble: bool, has_slopes: bool) -> Iterator[str]:
    """Yield the procedures that all networks with the same properties share."""
    yield _NORMALISE
    yield _OUTPUTS if has_outputs else _PLAIN_OUTPUTS
    if has_slopes:
        yield _TIMES_SLOPES
    if is_ensemble:
        yield _OVER_MEMBERS
    yield _CHECKS
