! The Fortran module for speed.cpp: arrays of known shapes, as a model has them.
subroutine fortran_forward(x, y) bind(c)
  use in_fortran
  real(wp), intent(in) :: x(num_inputs)
  real(wp), intent(out) :: y(num_outputs)
  call forward(x, y)
end subroutine fortran_forward

subroutine fortran_jacobian(x, y, jac) bind(c)
  use in_fortran
  real(wp), intent(in) :: x(num_inputs)
  real(wp), intent(out) :: y(num_outputs), jac(num_inputs, num_outputs)
  call jacobian(x, y, jac)
end subroutine fortran_jacobian

subroutine fortran_forward_batch(samples, x, y) bind(c)
  use, intrinsic :: iso_c_binding, only: c_int
  use in_fortran
  integer(c_int), value :: samples
  real(wp), intent(in) :: x(num_inputs, samples)
  real(wp), intent(out) :: y(num_outputs, samples)
  call forward(inputs_first, x, y)
end subroutine fortran_forward_batch

subroutine fortran_jacobian_batch(samples, x, y, jac) bind(c)
  use, intrinsic :: iso_c_binding, only: c_int
  use in_fortran
  integer(c_int), value :: samples
  real(wp), intent(in) :: x(num_inputs, samples)
  real(wp), intent(out) :: y(num_outputs, samples), jac(num_inputs, num_outputs, samples)
  call jacobian(inputs_first, x, y, jac)
end subroutine fortran_jacobian_batch
