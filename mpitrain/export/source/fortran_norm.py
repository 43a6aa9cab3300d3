"""Layer norm in Fortran: the statements of `portable/sources/layer_norm.h`."""

from __future__ import annotations

NORM_PROCEDURES = """\
  ! Replace z(samples, units) by scale (z - mean) / std + offset, over the units of each sample. Return values that the
  ! derivatives need: normalised(samples, units), and factor(samples), one over the standard deviation.
  pure subroutine normalise_units(samples, units, scale, offset, z, normalised, factor)
    integer, intent(in) :: samples, units
    real(wp), intent(in) :: scale(units), offset(units)
    real(wp), intent(inout) :: z(samples, units)
    real(wp), intent(out) :: normalised(samples, units), factor(samples)
    real(wp) :: mean(samples), squares(samples), term, deviation
    integer :: b, j
    mean = 0.0_wp
    squares = 0.0_wp
    do j = 1, units
      do b = 1, samples
        mean(b) = mean(b) + z(b, j)
      end do
    end do
    do b = 1, samples
      term = mean(b) / real(units, wp)
      mean(b) = merge(0.0_wp, term, abs(term) < sum_limit)
    end do
    do j = 1, units
      do b = 1, samples
        term = z(b, j) - mean(b)
        deviation = merge(0.0_wp, term, abs(term) < deviation_limit)
        term = deviation * deviation
        normalised(b, j) = deviation
        squares(b) = squares(b) + term
      end do
    end do
    do b = 1, samples
      term = squares(b) / real(units, wp)
      term = term + norm_epsilon
      factor(b) = 1.0_wp / sqrt(term)
    end do
    do j = 1, units
      do b = 1, samples
        term = normalised(b, j) * factor(b)
        normalised(b, j) = merge(0.0_wp, term, abs(term) < value_limit)
        term = normalised(b, j) * scale(j)
        z(b, j) = merge(0.0_wp, term, abs(term) < sum_limit) + offset(j)
      end do
    end do
  end subroutine normalise_units

  ! Convert derivatives (samples, units) with respect to normalised values into those with respect to z. The operation
  ! is symmetric: it converts tangents of z into those of normalised values, too.
  pure subroutine through_norm(samples, units, normalised, factor, values)
    integer, intent(in) :: samples, units
    real(wp), intent(in) :: normalised(samples, units), factor(samples)
    real(wp), intent(inout) :: values(samples, units)
    real(wp) :: mean(samples), along(samples), value, term, difference
    integer :: b, j
    mean = 0.0_wp
    along = 0.0_wp
    do j = 1, units
      do b = 1, samples
        value = merge(0.0_wp, values(b, j), abs(values(b, j)) < value_limit)
        term = value * normalised(b, j)
        values(b, j) = value
        mean(b) = mean(b) + value
        along(b) = along(b) + merge(0.0_wp, term, abs(term) < sum_limit)
      end do
    end do
    do b = 1, samples
      term = mean(b) / real(units, wp)
      mean(b) = merge(0.0_wp, term, abs(term) < value_limit)
      term = along(b) / real(units, wp)
      along(b) = merge(0.0_wp, term, abs(term) < value_limit)
    end do
    do j = 1, units
      do b = 1, samples
        term = normalised(b, j) * along(b)
        difference = values(b, j) - mean(b)
        difference = difference - merge(0.0_wp, term, abs(term) < sum_limit)
        term = merge(0.0_wp, difference, abs(difference) < value_limit) * factor(b)
        values(b, j) = merge(0.0_wp, term, abs(term) < value_limit)
      end do
    end do
  end subroutine through_norm

  pure subroutine times_scale(samples, units, scale, values)
    integer, intent(in) :: samples, units
    real(wp), intent(in) :: scale(units)
    real(wp), intent(inout) :: values(samples, units)
    real(wp) :: term
    integer :: b, j
    do j = 1, units
      do b = 1, samples
        term = values(b, j) * scale(j)
        values(b, j) = merge(0.0_wp, term, abs(term) < value_limit)
      end do
    end do
  end subroutine times_scale
"""
