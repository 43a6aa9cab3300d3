! Arrays of double precision, and fields by their names: the bits of the batch in the network's own precision.
program double_precision
  use, intrinsic :: iso_fortran_env, only: real64
  use emulator
  implicit none
  integer, parameter :: n = 37
  real(wp) :: x(num_inputs, n), y(num_outputs, n), dx(num_inputs, n)
  real(real64) :: x8(num_inputs, n), y8(num_outputs, n), jac8(num_inputs, num_outputs, n), first(n), second(n)
  real(real64) :: back(n, num_inputs)
  logical :: outside(n), outside_of_fields(n)
  integer :: s, i, status, of_fields
  do s = 1, n
    do i = 1, num_inputs
      x(i, s) = input_mean(i) + input_std(i) * 0.3_wp * real(mod(s * i, 23) - 8, wp)
    end do
  end do
  x8 = x
  call forward(inputs_first, x, y, status=status, outside=outside)
  call forward(inputs_first, x8, y8)
  print *, 'forward', same(pack(y8, .true.), pack(y, .true.))
  call forward_fields(samples_first, x8(1, :), x8(2, :), x8(3, :), x8(4, :), x8(5, :), x8(6, :), x8(7, :), first, &
    second, of_fields, outside_of_fields)
  print *, 'fields', same(first, y(1, :)), same(second, y(2, :))
  print *, 'outside', status == of_fields .and. status > 0, all(outside .eqv. outside_of_fields)
  call jacobian(inputs_first, x8, y8, jac8)
  call adjoint(inputs_first, x, y, dx)
  call adjoint(samples_first, transpose(x8), transpose(y8), back)
  print *, 'adjoint', same(pack(transpose(back), .true.), pack(dx, .true.)), same(pack(y8, .true.), pack(y, .true.))
  call forward_fields(samples_first, x8(1, :), x8(2, :), x8(3, :), x8(4, :), x8(5, :), x8(6, :), x8(7, :), first, &
    second(2:), of_fields)
  print *, 'shapes', of_fields == -1
contains
  logical function same(found, expected)
    real(real64), intent(in) :: found(:)
    real(wp), intent(in) :: expected(:)
    same = .not. any(abs(found - real(expected, real64)) > 0)
  end function same
end program double_precision
