! A toy ocean under MPI: a ring of columns, shared out among the ranks, whose heat the sea ice between two columns keeps
! from mixing. Each step asks the exported network for the ice of every column of this rank's own grid.
! The heat of the whole ring is conserved, and the same on any number of ranks.
program ocean
  use, intrinsic :: iso_c_binding, only: c_double, c_int
  use emulator, only: wp, num_inputs, num_outputs, samples_first, forward, check_arithmetic, check_layout, &
    is_samples_first, probe, input_minimum, input_maximum
  implicit none
  interface
    subroutine begin(rank, num_ranks) bind(c)
      import :: c_int
      integer(c_int), intent(out) :: rank, num_ranks
    end subroutine begin
    ! values(0) from the rank before this one, values(n + 1) from the one after, around the ring.
    subroutine exchange(n, values) bind(c)
      import :: c_int, c_double
      integer(c_int), value :: n
      real(c_double), intent(inout) :: values(*)
    end subroutine exchange
    ! The columns of all ranks in their order, on rank 0.
    subroutine gather(n, values, total, all_values) bind(c)
      import :: c_int, c_double
      integer(c_int), value :: n, total
      real(c_double), intent(in) :: values(*)
      real(c_double), intent(out) :: all_values(*)
    end subroutine gather
    subroutine finish() bind(c)
    end subroutine finish
  end interface
  integer(c_int), parameter :: columns = 90, sst = 3
  integer, parameter :: num_steps = 200
  integer(c_int) :: rank, num_ranks, n, first
  real(c_double), allocatable :: heat(:), ice(:), flux(:), everywhere(:)
  real(wp), allocatable :: state(:, :), answers(:, :)
  real(c_double) :: before
  integer :: i, step, status, finding, unit

  call begin(rank, num_ranks)
  if (.not. check_arithmetic()) error stop 'this build computes other bits than mpitrain predict'
  call check_layout(spread(probe, 1, 2), finding)
  if (finding /= is_samples_first) error stop 'the fields are packed in another way than the network reads them'
  first = rank * columns / num_ranks
  n = (rank + 1) * columns / num_ranks - first
  allocate (heat(0:n + 1), ice(0:n + 1), flux(0:n), state(n, num_inputs), answers(n, num_outputs), everywhere(columns))
  do i = 1, n
    state(i, :) = input_minimum + (input_maximum - input_minimum) * real(mod((first + i) * 37, columns), wp) / columns
  end do
  heat(1:n) = state(:, sst)
  call gather(n, heat(1:n), columns, everywhere)
  before = sum(everywhere)
  do step = 1, num_steps
    state(:, sst) = real(heat(1:n), wp)
    call forward(samples_first, state, answers, status=status)
    if (status /= 0) error stop 'a column has left the range of the training data'
    ice(1:n) = min(max(answers(:, 1), 0.0_wp), 1.0_wp)
    call exchange(n, ice)
    call exchange(n, heat)
    ! What leaves one column enters the next.
    flux = 0.2_c_double * (1 - max(ice(0:n), ice(1:n + 1))) * (heat(0:n) - heat(1:n + 1))
    heat(1:n) = heat(1:n) + (flux(0:n - 1) - flux(1:n))
  end do
  call gather(n, heat(1:n), columns, everywhere)
  if (rank == 0) then
    print '(a, 3es24.16)', 'heat before, after, range: ', before, sum(everywhere), maxval(everywhere) - minval(everywhere)
    open (newunit=unit, file='heat.bin', access='stream', form='unformatted', status='replace', action='write')
    write (unit) everywhere
    close (unit)
  end if
  call finish()
end program ocean
