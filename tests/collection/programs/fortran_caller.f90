! Collect from Fortran what `fortran_main.c` asks for: the same samples by each kind of number, and a wrong shape.
subroutine collect_in_fortran(comm, rank, num_ranks) bind(c)
    use, intrinsic :: iso_c_binding, only: c_int
    use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
    use mpitrain_collection
    implicit none
    integer(c_int), value :: comm, rank, num_ranks
    integer, parameter :: num_cells = 240
    type(mt_collection) :: set, other
    integer(int64) :: cells(num_cells / num_ranks), step
    real(real64) :: inputs(2, size(cells)), targets(1, size(cells))
    integer :: i, status

    call mt_open_collection(set, 'few.yaml', comm, status)
    if (status /= mt_ok) print '(a)', mt_message(set)
    do step = 0, 7
        cells = [(int(rank + num_ranks*(i - 1), int64), i=1, size(cells))]
        inputs(1, :) = real(cells, real64) + 0.1_real64
        inputs(2, :) = real(step, real64)
        targets(1, :) = inputs(1, :)*inputs(2, :)
        select case (mod(step, 4_int64))
        case (0)
            call mt_add(set, cells, step, inputs, targets, status)
        case (1)
            call mt_add(set, int(cells, int32), int(step, int32), inputs, targets, status)
        case (2)
            call mt_add(set, cells, step, real(inputs, real32), real(targets, real32), status)
        case default ! every other column of a larger array
            call mt_add(set, int(cells, int32), int(step, int32), real(inputs, real32), real(targets, real32), status)
        end select
        if (status /= mt_ok) print '(a, i0)', 'add ', status
    end do
    call mt_add(set, cells, step, inputs, targets(:, 2:), status)
    if (rank == 0) print '(a, i0)', 'shape ', status
    call mt_write(set, status)
    if (rank == 0) print '(a, i0)', 'write ', status
    call mt_write_restart(set, 'restart.nc', status)
    call mt_open_collection(other, 'few.yaml', comm, status)
    call mt_read_restart(other, 'missing.nc', status)
    if (rank == 0) print '(a, i0, 1x, a)', 'missing ', status, mt_message(other)
    call mt_read_restart(other, 'restart.nc', status)
    call mt_write_restart(other, 'again.nc', status)
    if (rank == 0) print '(a, i0)', 'again ', status
    if (rank == 0) print '(a, l1)', 'memory ', mt_memory_bytes(set) > 200*3*4
    call mt_close(set, status)
    call mt_close(other, status)
    call mt_close(other, status)
    if (rank == 0) print '(a, i0)', 'closed ', status
end subroutine collect_in_fortran
