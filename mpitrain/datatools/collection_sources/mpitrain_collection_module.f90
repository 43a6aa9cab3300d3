! Collect training samples in a running MPI model: Fortran interface of mpitrain_collection.c, which must be linked too.
! mpitrain_collection.h documents the calls, the meaning of each status, and the memory needed.
!
!     use mpitrain_collection
!     type(mt_collection) :: set
!     call mt_open_collection(set, 'collect.yaml', comm, status)        ! comm: an integer; mpi_f08: comm%mpi_val
!     call mt_add(set, cell_ids, step, inputs, targets, status)         ! inputs(F, n), targets(O, n); local
!     call mt_write(set, status)
!     call mt_close(set, status)
!
! status is 0 on success; otherwise mt_message(set) returns the reason in one line. No call stops the program. cell_ids
! and step are both int32 or both int64, inputs and targets both real32 or both real64; values are stored as real32.
module mpitrain_collection
    use, intrinsic :: iso_c_binding
    use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
    implicit none
    private
    public :: mt_collection, mt_open_collection, mt_add, mt_write, mt_write_restart, mt_read_restart, mt_close
    public :: mt_message, mt_memory_bytes

    integer, parameter, public :: mt_ok = 0, mt_left_out = 1, mt_shown_twice = 2, mt_no_samples = 3
    integer, parameter, public :: mt_wrong_settings = -1, mt_wrong_shape = -2, mt_no_memory = -3
    integer, parameter, public :: mt_file_failed = -4, mt_other_collection = -5, mt_not_open = -6

    type :: mt_collection
        private
        type(c_ptr) :: set = c_null_ptr
    end type mt_collection

    interface mt_add
        module procedure add_int64_real32, add_int64_real64, add_int32_real32, add_int32_real64
    end interface mt_add

    interface
        function c_open(set, settings_file, comm) bind(c, name='mt_open_collection_f') result(status)
            import :: c_ptr, c_char, c_int
            type(c_ptr), intent(out) :: set
            character(kind=c_char), intent(in) :: settings_file(*)
            integer(c_int), value :: comm
            integer(c_int) :: status
        end function c_open

        function c_add(set, num_samples, cell_ids, step, num_inputs, inputs, num_targets, targets, regions) &
            bind(c, name='mt_add') result(status)
            import :: c_ptr, c_int, c_int64_t, c_float
            type(c_ptr), value :: set, regions
            integer(c_int64_t), value :: num_samples, step
            integer(c_int64_t), intent(in) :: cell_ids(*)
            integer(c_int), value :: num_inputs, num_targets
            real(c_float), intent(in) :: inputs(*), targets(*)
            integer(c_int) :: status
        end function c_add

        function c_add_double(set, num_samples, cell_ids, step, num_inputs, inputs, num_targets, targets, regions) &
            bind(c, name='mt_add_double') result(status)
            import :: c_ptr, c_int, c_int64_t, c_double
            type(c_ptr), value :: set, regions
            integer(c_int64_t), value :: num_samples, step
            integer(c_int64_t), intent(in) :: cell_ids(*)
            integer(c_int), value :: num_inputs, num_targets
            real(c_double), intent(in) :: inputs(*), targets(*)
            integer(c_int) :: status
        end function c_add_double

        function c_write(set) bind(c, name='mt_write') result(status)
            import :: c_ptr, c_int
            type(c_ptr), value :: set
            integer(c_int) :: status
        end function c_write

        function c_write_restart(set, file) bind(c, name='mt_write_restart') result(status)
            import :: c_ptr, c_char, c_int
            type(c_ptr), value :: set
            character(kind=c_char), intent(in) :: file(*)
            integer(c_int) :: status
        end function c_write_restart

        function c_read_restart(set, file) bind(c, name='mt_read_restart') result(status)
            import :: c_ptr, c_char, c_int
            type(c_ptr), value :: set
            character(kind=c_char), intent(in) :: file(*)
            integer(c_int) :: status
        end function c_read_restart

        function c_close(set) bind(c, name='mt_close') result(status)
            import :: c_ptr, c_int
            type(c_ptr), intent(inout) :: set
            integer(c_int) :: status
        end function c_close

        function c_message(set) bind(c, name='mt_message') result(text)
            import :: c_ptr
            type(c_ptr), value :: set
            type(c_ptr) :: text
        end function c_message

        function c_memory_bytes(set) bind(c, name='mt_memory_bytes') result(bytes)
            import :: c_ptr, c_size_t
            type(c_ptr), value :: set
            integer(c_size_t) :: bytes
        end function c_memory_bytes

        function c_length(text) bind(c, name='strlen') result(length)
            import :: c_ptr, c_size_t
            type(c_ptr), value :: text
            integer(c_size_t) :: length
        end function c_length
    end interface

contains

    !> Open the collection that a file of settings describes. Collective over `comm`, which is duplicated.
    subroutine mt_open_collection(set, settings_file, comm, status)
        type(mt_collection), intent(out) :: set
        character(len=*), intent(in) :: settings_file
        integer, intent(in) :: comm
        integer, intent(out) :: status
        status = c_open(set%set, c_text(settings_file), int(comm, c_int))
    end subroutine mt_open_collection

    !> Pass real32 samples of one model step. Local. `regions` (n), from 0, if the settings stratify by regions.
    subroutine add_int64_real32(set, cell_ids, step, inputs, targets, status, regions)
        type(mt_collection), intent(in) :: set
        integer(int64), intent(in), contiguous :: cell_ids(:)
        integer(int64), intent(in) :: step
        real(real32), intent(in), contiguous :: inputs(:, :), targets(:, :)
        integer, intent(out) :: status
        integer(c_int), intent(in), contiguous, target, optional :: regions(:)
        status = mt_wrong_shape
        if (.not. has_one_count(size(cell_ids), size(inputs, 2), size(targets, 2), regions)) return
        status = c_add(set%set, size(cell_ids, kind=c_int64_t), cell_ids, step, size(inputs, 1, kind=c_int), inputs, &
            size(targets, 1, kind=c_int), targets, address_of(regions))
    end subroutine add_int64_real32

    !> The same for real64 samples.
    subroutine add_int64_real64(set, cell_ids, step, inputs, targets, status, regions)
        type(mt_collection), intent(in) :: set
        integer(int64), intent(in), contiguous :: cell_ids(:)
        integer(int64), intent(in) :: step
        real(real64), intent(in), contiguous :: inputs(:, :), targets(:, :)
        integer, intent(out) :: status
        integer(c_int), intent(in), contiguous, target, optional :: regions(:)
        status = mt_wrong_shape
        if (.not. has_one_count(size(cell_ids), size(inputs, 2), size(targets, 2), regions)) return
        status = c_add_double(set%set, size(cell_ids, kind=c_int64_t), cell_ids, step, size(inputs, 1, kind=c_int), &
            inputs, size(targets, 1, kind=c_int), targets, address_of(regions))
    end subroutine add_int64_real64

    !> The same with int32 numbers of cells and steps.
    subroutine add_int32_real32(set, cell_ids, step, inputs, targets, status, regions)
        type(mt_collection), intent(in) :: set
        integer(int32), intent(in) :: cell_ids(:), step
        real(real32), intent(in), contiguous :: inputs(:, :), targets(:, :)
        integer, intent(out) :: status
        integer(c_int), intent(in), contiguous, target, optional :: regions(:)
        call add_int64_real32(set, int(cell_ids, int64), int(step, int64), inputs, targets, status, regions)
    end subroutine add_int32_real32

    !> The same with int32 numbers of cells and steps, for real64 samples.
    subroutine add_int32_real64(set, cell_ids, step, inputs, targets, status, regions)
        type(mt_collection), intent(in) :: set
        integer(int32), intent(in) :: cell_ids(:), step
        real(real64), intent(in), contiguous :: inputs(:, :), targets(:, :)
        integer, intent(out) :: status
        integer(c_int), intent(in), contiguous, target, optional :: regions(:)
        call add_int64_real64(set, int(cell_ids, int64), int(step, int64), inputs, targets, status, regions)
    end subroutine add_int32_real64

    !> Write the file that the settings name as `output`. Collective.
    subroutine mt_write(set, status)
        type(mt_collection), intent(in) :: set
        integer, intent(out) :: status
        status = c_write(set%set)
    end subroutine mt_write

    !> Write a restart file, from which a collection is continued. Collective.
    subroutine mt_write_restart(set, file, status)
        type(mt_collection), intent(in) :: set
        character(len=*), intent(in) :: file
        integer, intent(out) :: status
        status = c_write_restart(set%set, c_text(file))
    end subroutine mt_write_restart

    !> Restore the state from a restart file, on any number of ranks, before the first `mt_add`. Collective.
    subroutine mt_read_restart(set, file, status)
        type(mt_collection), intent(in) :: set
        character(len=*), intent(in) :: file
        integer, intent(out) :: status
        status = c_read_restart(set%set, c_text(file))
    end subroutine mt_read_restart

    !> Free everything. Collective.
    subroutine mt_close(set, status)
        type(mt_collection), intent(inout) :: set
        integer, intent(out) :: status
        status = c_close(set%set)
    end subroutine mt_close

    !> Return one line about the last status that was not 0.
    function mt_message(set) result(text)
        type(mt_collection), intent(in) :: set
        character(len=:), allocatable :: text
        character(kind=c_char), pointer :: letters(:)
        type(c_ptr) :: found
        integer :: i
        found = c_message(set%set)
        call c_f_pointer(found, letters, [c_length(found)])
        allocate (character(len=size(letters)) :: text)
        do i = 1, size(letters)
            text(i:i) = letters(i)
        end do
    end function mt_message

    !> Return the bytes allocated by the collection on this rank.
    function mt_memory_bytes(set) result(bytes)
        type(mt_collection), intent(in) :: set
        integer(int64) :: bytes
        bytes = int(c_memory_bytes(set%set), int64)
    end function mt_memory_bytes

    pure function c_text(text) result(letters)
        character(len=*), intent(in) :: text
        character(kind=c_char, len=:), allocatable :: letters
        letters = trim(text)//c_null_char
    end function c_text

    pure function has_one_count(num_cells, num_inputs, num_targets, regions) result(is_so)
        integer, intent(in) :: num_cells, num_inputs, num_targets
        integer(c_int), intent(in), optional :: regions(:)
        logical :: is_so
        is_so = num_cells == num_inputs .and. num_cells == num_targets
        if (present(regions)) is_so = is_so .and. size(regions) == num_cells
    end function has_one_count

    function address_of(regions) result(address)
        integer(c_int), intent(in), contiguous, target, optional :: regions(:)
        type(c_ptr) :: address
        address = c_null_ptr
        if (present(regions)) then
            if (size(regions) > 0) address = c_loc(regions)
        end if
    end function address_of
end module mpitrain_collection
