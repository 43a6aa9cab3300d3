"""Notices about the variables that are read: every assumption, and every part that is left out, is reported."""

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
    """Yield notices on all files: assumed dimensions, targets that are inputs, rows without times, cyclic inputs."""
    access, time = record.variables, record.time
    yield from _guesses_of_axes(access, file)
    yield from _targets_among_inputs(plan, access)
    if not plan.may_lack_targets:  # in training only: the inputs of a trained network are fixed
        if time is None and file.variables and all(one.dimensions == ("",) for one in file.variables.values()):
            advice = where_times_may_be(file, by_name=True)
            yield from [] if advice is None else [f"{file.path}: its rows have no time: {advice}"]
        if not plan.selection.is_resumed:
            yield from seam_notices(plan.input_names, file, *((None, "standard") if times is None else times[:2]))


def notes_of_file(file: FieldFile, infos: Iterable[VariableInfo]) -> Iterator[str]:
    """Yield the file's notes on variables, and attributes that are text and not applied, without the file's name."""
    for info in {one.name: one for one in infos}.values():
        note = file.note_of(info.name)
        notes = [note] if note is not None else []
        notes += [
            f"{name} is the text '{info.text(name)}', and is not applied; write a number, or exclude values with "
            "domain.mask"
            for name in unread_attributes(info)
        ]
        yield from (f"variable '{info.name}': {text}" for text in notes)


def _guesses_of_axes(access: Mapping[str, VariableAccess], file: FieldFile) -> Iterator[str]:
    """Yield a notice for each dimension that is assumed to be time, rows or columns because of its position alone."""
    reported: set[str] = set()
    for one in access.values():
        kinds = dict(zip(one.axes.order, KINDS, strict=True))
        for axis in one.axes.guessed:
            name = one.info.dimensions[axis]
            if name not in reported:
                reported.add(name)
                yield (
                    f"{file.path}: variable '{one.info.name}' ({one.info.sizes}): dimension {name} is assumed to be "
                    f"{kinds[axis]} because of its position; if it is not, select one index, as in "
                    f"{one.info.short_name}[{name}=0]"
                )


def _targets_among_inputs(plan: GridPlan, access: Mapping[str, VariableAccess]) -> Iterator[str]:
    """Yield a notice for each target that is also an input, under any name, at the same time level."""
    place = lambda name: (access[name].info.name, access[name].axes.fixed, access[name].lag)  # noqa: E731
    inputs = {place(name): name for name in plan.input_names if name in access}
    for target in plan.target_names if plan.has_targets else ():
        same = inputs.get(place(target)) if target in access else (target if target in plan.input_names else None)
        if same is not None:
            own = "" if same == target else f" ({same})"
            yield f"variables.output_variables: {target} is also an input{own}: the network can simply copy it"
