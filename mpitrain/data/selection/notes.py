"""What a user should know of the variables that are read: nothing is guessed or left out without a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from mpitrain.data.describe.roles import KINDS
from mpitrain.data.describe.times import DecodedTimes, where_times_may_be
from mpitrain.data.files.decoding import unread_attributes
from mpitrain.data.files.variable import FieldFile, VariableInfo
from mpitrain.data.selection.cyclic import seam_notices
from mpitrain.data.selection.plan import GridPlan
from mpitrain.data.selection.source import SourceFile
from mpitrain.data.selection.variable_access import VariableAccess


def notes_of_first_file(
    plan: GridPlan, file: FieldFile, record: SourceFile, times: DecodedTimes | None
) -> Iterator[str]:
    """Yield what holds for all files: guessed dimensions, targets that are inputs, rows without times, seams."""
    access, time = record.variables, record.time
    yield from _guesses_of_axes(access, file)
    yield from _targets_among_inputs(plan, access)
    if not plan.may_lack_targets:  # a trained network has its inputs, and what it learnt from
        if time is None and file.variables and all(one.dimensions == ("",) for one in file.variables.values()):
            where = where_times_may_be(file, by_name=True)
            yield from [] if where is None else [f"{file.path}: its rows have no time: {where}"]
        if not plan.selection.is_resumed:
            yield from seam_notices(plan.input_names, file, *((None, "standard") if times is None else times[:2]))


def notes_of_file(file: FieldFile, infos: Iterable[VariableInfo]) -> Iterator[str]:
    """Yield what is not stored, and attributes that are text and not applied, without the file's name."""
    for info in {one.name: one for one in infos}.values():
        note = file.note_of(info.name)
        words = [note] if note is not None else []
        words += [
            f"{name} is the text '{info.text(name)}', and is not applied; write a number, or leave values out with "
            "domain.mask"
            for name in unread_attributes(info)
        ]
        yield from (f"variable '{info.name}': {word}" for word in words)


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


def _targets_among_inputs(plan: GridPlan, access: Mapping[str, VariableAccess]) -> Iterator[str]:
    """Yield a notice for each target that is an input too, under whatever names, at the same time level."""
    place = lambda name: (access[name].info.name, access[name].axes.fixed, access[name].lag)  # noqa: E731
    inputs = {place(name): name for name in plan.input_names if name in access}
    for target in plan.target_names if plan.has_targets else ():
        same = inputs.get(place(target)) if target in access else (target if target in plan.input_names else None)
        if same is not None:
            own = "" if same == target else f" ({same})"
            yield f"variables.output_variables: {target} is an input too{own}: the network need only copy it"
