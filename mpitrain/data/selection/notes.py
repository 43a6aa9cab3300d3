"""What a user should know of the variables that are read: nothing is guessed or left out without a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from mpitrain.data.describe.roles import KINDS
from mpitrain.data.describe.times import Times
from mpitrain.data.files.decoding import unread_attributes
from mpitrain.data.files.variable import FieldFile, VariableInfo
from mpitrain.data.selection.cyclic import seam_notices
from mpitrain.data.selection.grid_files import Grids
from mpitrain.data.selection.variable_access import VariableAccess


def notes_of_first_file(
    grids: Grids, file: FieldFile, access: Mapping[str, VariableAccess], times: Times | None
) -> Iterator[str]:
    """Yield what holds for all files: guessed dimensions, targets that are inputs, inputs with a seam."""
    yield from _guesses_of_axes(access, file)
    yield from _targets_among_inputs(grids, access)
    if not grids.may_lack_targets:  # a trained network has its inputs
        yield from seam_notices(grids.input_names, file, times, grids.calendar or "standard")


def notes_of_file(file: FieldFile, infos: Iterable[VariableInfo], told: set[str]) -> Iterator[str]:
    """Yield a notice for what is not stored, and for attributes that are text and not applied; not what was `told`."""
    for info in {one.name: one for one in infos}.values():
        note = file.note_of(info.name)
        words = [note] if note is not None else []
        words += [
            f"{name} is the text '{info.text(name)}', and is not applied; write a number, or leave values out with "
            "domain.mask"
            for name in unread_attributes(info)
        ]
        for one in (f"variable '{info.name}': {word}" for word in words):
            if one not in told:
                told.add(one)
                yield f"{file.path}: {one}"


def _guesses_of_axes(access: Mapping[str, VariableAccess], file: FieldFile) -> Iterator[str]:
    """Yield a notice for each dimension that is taken for time, rows or columns by its place among the others alone."""
    said: set[str] = set()
    for one in access.values():
        kinds = dict(zip(one.axes.order, KINDS, strict=True))
        for axis in one.axes.guessed:
            name = one.info.dimensions[axis]
            if name not in said:
                said.add(name)
                yield (
                    f"{file.path}: variable '{one.info.name}' ({one.info.sizes}): {name} is taken for {kinds[axis]} "
                    f"by its place; if it is none, take a level, as in {one.info.short_name}[{name}=0]"
                )


def _targets_among_inputs(grids: Grids, access: Mapping[str, VariableAccess]) -> Iterator[str]:
    """Yield a notice for each target that is an input too, under whatever names, at the same time level."""
    place = lambda name: (access[name].info.name, access[name].axes.fixed, access[name].lag)  # noqa: E731
    inputs = {place(name): name for name in grids.input_names if name in access}
    for target in grids.target_names if grids.has_targets else ():
        same = inputs.get(place(target)) if target in access else (target if target in grids.input_names else None)
        if same is not None:
            own = "" if same == target else f" ({same})"
            yield f"variables.output_variables: {target} is an input too{own}: the network need only copy it"
