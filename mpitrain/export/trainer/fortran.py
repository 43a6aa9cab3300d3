"""The Fortran module of a trainer."""

from __future__ import annotations

from collections.abc import Iterator

from mpitrain.export.trainer.plan import TrainerPlan
from mpitrain.version import __version__

_HEAD = """\
! Fortran interface of {name}.cpp, which must be linked too; {name}.h documents each call. Written by
! mpitrain {version}. It does not use MPI: comm is an integer; with mpi_f08, pass comm%mpi_val.
!
!     use {name}
!     type({name}_trainer) :: trainer
!     call {name}_open(trainer, comm, status)                                   ! collective; duplicates comm
!     call {name}_add(trainer, cell_ids, step, inputs, targets, status)         ! inputs(F, n), targets(O, n); local
!     call {name}_freeze(trainer, status)
!     call {name}_take_steps(trainer, num_steps, loss, status)                  ! collective
!     call {name}_forward(trainer, inputs, outputs, status)
!     call {name}_save_run(trainer, 'folder', status)
!
! status is 0 on success, positive for a notice, negative if nothing was done; {name}_message(trainer) returns the
! reason in one line. No call stops the program.
module {name}
    use, intrinsic :: iso_c_binding
    use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
    implicit none
    private
    public :: {name}_trainer, {name}_open, {name}_add, {name}_freeze, {name}_take_steps, {name}_forward
    public :: {name}_write_restart, {name}_read_restart, {name}_save_run, {name}_hash, {name}_close, {name}_message

    integer, parameter, public :: {name}_num_inputs = {inputs}, {name}_num_targets = {targets}
    integer, parameter, public :: trainer_ok = 0, trainer_finished = 1, trainer_left_out = 2, trainer_shown_twice = 3
    integer, parameter, public :: trainer_is_frozen = 4, trainer_no_samples = -1, trainer_wrong_call = -2
    integer, parameter, public :: trainer_no_memory = -3, trainer_file_failed = -4, trainer_wrong_flags = -5
    integer, parameter, public :: trainer_not_open = -6, trainer_diverged = -7

    type :: {name}_trainer
        private
        type(c_ptr) :: trainer = c_null_ptr
    end type {name}_trainer

    interface {name}_add
        module procedure add_int64_real32, add_int64_real64, add_int32_real32, add_int32_real64
    end interface {name}_add

    interface
"""
_FUNCTION = """\
        function c_{call}({arguments}) bind(c, name='{name}_{symbol}') result(status)
            import :: c_ptr, c_char, c_int, c_int64_t, c_float, c_double
{declarations}
            integer(c_int) :: status
        end function c_{call}

"""
_MORE_FUNCTIONS = """\
        function c_message(trainer) bind(c, name='{name}_message') result(text)
            import :: c_ptr
            type(c_ptr), value :: trainer
            type(c_ptr) :: text
        end function c_message

        function c_length(text) bind(c, name='strlen') result(length)
            import :: c_ptr, c_size_t
            type(c_ptr), value :: text
            integer(c_size_t) :: length
        end function c_length
    end interface

contains

    !> Open a trainer. Collective over `comm`, which is duplicated.
    subroutine {name}_open(trainer, comm, status)
        type({name}_trainer), intent(out) :: trainer
        integer, intent(in) :: comm
        integer, intent(out) :: status
        status = c_open(trainer%trainer, int(comm, c_int))
    end subroutine {name}_open

    !> Freeze the samples kept so far: training uses these. Collective.
    subroutine {name}_freeze(trainer, status)
        type({name}_trainer), intent(in) :: trainer
        integer, intent(out) :: status
        status = c_freeze(trainer%trainer)
    end subroutine {name}_freeze

    !> Take up to `num_steps` training steps; return the loss of the last one. Collective.
    subroutine {name}_take_steps(trainer, num_steps, loss, status)
        type({name}_trainer), intent(in) :: trainer
        integer, intent(in) :: num_steps
        real(real64), intent(inout) :: loss
        integer, intent(out) :: status
        status = c_step(trainer%trainer, int(num_steps, c_int64_t), loss)
    end subroutine {name}_take_steps

    !> Evaluate the current network in physical units: inputs(F, n) to outputs(O, n). Local.
    subroutine {name}_forward(trainer, inputs, outputs, status)
        type({name}_trainer), intent(in) :: trainer
        real({real}), intent(in), contiguous :: inputs(:, :)
        real({real}), intent(out), contiguous :: outputs(:, :)
        integer, intent(out) :: status
        status = trainer_wrong_call
        if (size(inputs, 1) /= {inputs} .or. size(outputs, 1) /= {targets}) return
        if (size(inputs, 2) /= size(outputs, 2)) return
        status = c_forward(trainer%trainer, size(inputs, 2, kind=c_int64_t), inputs, outputs)
    end subroutine {name}_forward

    !> Return the hash of the weights that a run exports, as `mpitrain train` prints it. Local.
    subroutine {name}_hash(trainer, text, status)
        type({name}_trainer), intent(in) :: trainer
        character(len=64), intent(out) :: text
        integer, intent(out) :: status
        character(kind=c_char) :: letters(65)
        integer :: i
        text = ''
        status = c_hash(trainer%trainer, letters)
        if (status /= 0) return
        do i = 1, 64
            text(i:i) = letters(i)
        end do
    end subroutine {name}_hash

    !> Free everything. Collective.
    subroutine {name}_close(trainer, status)
        type({name}_trainer), intent(inout) :: trainer
        integer, intent(out) :: status
        status = c_close(trainer%trainer)
    end subroutine {name}_close

    !> Return one line about the last status that was not 0.
    function {name}_message(trainer) result(text)
        type({name}_trainer), intent(in) :: trainer
        character(len=:), allocatable :: text
        character(kind=c_char), pointer :: letters(:)
        type(c_ptr) :: from
        integer :: i
        from = c_message(trainer%trainer)
        call c_f_pointer(from, letters, [c_length(from)])
        allocate (character(len=size(letters)) :: text)
        do i = 1, size(letters)
            text(i:i) = letters(i)
        end do
    end function {name}_message

    pure function c_text(text) result(letters)
        character(len=*), intent(in) :: text
        character(kind=c_char, len=:), allocatable :: letters
        letters = trim(text)//c_null_char
    end function c_text
"""
_WITH_PATH = """
    !> {what} Collective.
    subroutine {name}_{call}(trainer, path, status)
        type({name}_trainer), intent(in) :: trainer
        character(len=*), intent(in) :: path
        integer, intent(out) :: status
        status = c_{call}(trainer%trainer, c_text(path))
    end subroutine {name}_{call}
"""
_ADD = """
    !> Add {real} samples of one model step, with {integer} cell numbers. Local.
    subroutine add_{integer}_{real}(trainer, cell_ids, step, inputs, targets, status)
        type({name}_trainer), intent(in) :: trainer
        integer({integer}), intent(in), contiguous :: cell_ids(:)
        integer({integer}), intent(in) :: step
        real({real}), intent(in), contiguous :: inputs(:, :), targets(:, :)
        integer, intent(out) :: status
        status = trainer_wrong_call
        if (size(inputs, 1) /= {inputs} .or. size(targets, 1) /= {targets}) return
        if (size(inputs, 2) /= size(cell_ids) .or. size(targets, 2) /= size(cell_ids)) return
        status = c_{call}(trainer%trainer, size(cell_ids, kind=c_int64_t), &
            {cells}, int(step, c_int64_t), inputs, targets)
    end subroutine add_{integer}_{real}
"""
_PATHS = {
    "write_restart": "Write the complete state of the trainer to one file.",
    "read_restart": "Restore the state from that file, before the first samples, on any number of ranks.",
    "save_run": "Write a run folder for `mpitrain predict`, `export`, `report` and `train --resume`.",
}


def fortran_module(plan: TrainerPlan) -> str:
    """Return the text of the module."""
    inputs, targets = plan.network.sizes[0], plan.network.sizes[-1]
    real = {"float32": "real32", "float64": "real64"}[plan.network.dtype]
    values = {"name": plan.name, "version": __version__, "inputs": inputs, "targets": targets, "real": real}
    of_paths = "".join(_WITH_PATH.format(name=plan.name, call=call, what=what) for call, what in _PATHS.items())
    return "".join(
        [_HEAD.format(**values), *_functions(plan), _MORE_FUNCTIONS.format(**values), of_paths, *_adds(values)]
    ) + (f"end module {plan.name}\n")


def _functions(plan: TrainerPlan) -> Iterator[str]:
    real = {"float32": "c_float", "float64": "c_double"}[plan.network.dtype]
    handle, count = "type(c_ptr), value :: trainer", "integer(c_int64_t), value :: "
    path = "character(kind=c_char), intent(in) :: path(*)"
    out, comm = "type(c_ptr), intent(out) :: trainer", "integer(c_int), value :: comm"
    yield _function(plan.name, "open", "trainer, comm", [out, comm], "open_f")
    for call, kind in (("add", "c_float"), ("add_double", "c_double")):
        values = f"real({kind}), intent(in) :: inputs(*), targets(*)"
        cells = "integer(c_int64_t), intent(in) :: cell_ids(*)"
        yield _function(
            plan.name, call, "trainer, count, cell_ids, step, inputs, targets",
            [handle, f"{count}count, step", cells, values],
        )  # fmt: skip
    yield _function(plan.name, "freeze", "trainer", [handle])
    loss = "real(c_double), intent(inout) :: loss"
    yield _function(plan.name, "step", "trainer, num_steps, loss", [handle, f"{count}num_steps", loss])
    both = [f"real({real}), intent(in) :: inputs(*)", f"real({real}), intent(out) :: outputs(*)"]
    yield _function(plan.name, "forward", "trainer, count, inputs, outputs", [handle, f"{count}count", *both])
    for call in _PATHS:
        yield _function(plan.name, call, "trainer, path", [handle, path])
    letters = "character(kind=c_char), intent(out) :: text(*)"
    yield _function(plan.name, "hash", "trainer, text", [handle, letters])
    yield _function(plan.name, "close", "trainer", ["type(c_ptr), intent(inout) :: trainer"])


def _function(name: str, call: str, arguments: str, declarations: list[str], symbol: str = "") -> str:
    lines = "\n".join(f"            {line}" for line in declarations)
    return _FUNCTION.format(name=name, call=call, symbol=symbol or call, arguments=arguments, declarations=lines)


def _adds(values: dict[str, object]) -> Iterator[str]:
    for integer, cells in (("int64", "cell_ids"), ("int32", "int(cell_ids, c_int64_t)")):
        for real, call in (("real32", "add"), ("real64", "add_double")):
            yield _ADD.format(**{**values, "integer": integer, "real": real, "call": call, "cells": cells})
