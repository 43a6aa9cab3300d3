"""The plan that the first file of a grid defines for all files: inputs, targets, selected points and their areas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mpitrain.data.describe.description import FileDescription
from mpitrain.data.describe.names import (
    CICE_INPUTS,
    CICE_TARGET,
    ICE_FRACTION,
    LATITUDE,
    QUANTITIES,
    describe_variables,
    is_absent,
    is_cice_history,
    list_names,
    quantity_of,
)
from mpitrain.data.selection.expressions.naming import Naming, clocks_of, names_needed, spell_out
from mpitrain.data.selection.matching import sample_dimensions
from mpitrain.data.selection.rule import OF_PLACES, Condition, PointRule, build_point_rule, ice_condition, uses_ice
from mpitrain.data.selection.settings import WITHOUT_TARGETS, Selection
from mpitrain.data.selection.variable_access import (
    FROM_RADIANS,
    VariableAccess,
    find_access,
    find_main,
    is_radians,
    reference_of,
)
from mpitrain.errors import MissingVariableError

Access = dict[str, VariableAccess]


@dataclass(frozen=True)
class GridPlan:
    """The variables of each file that are read, and their purpose.

    `names` are all references to variables of a file, `coordinates` those that describe the grid and are neither inputs
    nor targets. `rule` selects the points. Areas are those of `area_name`, or the cosine of the latitude
    `latitude_name` * `latitude_scale` (in degrees).
    """

    selection: Selection
    input_names: tuple[str, ...]
    target_names: tuple[str, ...]
    may_lack_targets: bool
    has_targets: bool = True
    naming: Naming = field(default_factory=Naming)
    rule: PointRule = field(default_factory=lambda: PointRule((), ""))
    latitude_name: str | None = None
    latitude_scale: float = 1.0
    area_name: str | None = None
    names: tuple[str, ...] = ()
    coordinates: tuple[str, ...] = ()

    @property
    def main_names(self) -> tuple[str, ...]:
        """The names that are read from every chunk."""
        return (*self.input_names, *(self.target_names if self.has_targets else ()))

    @property
    def main_references(self) -> tuple[str, ...]:
        """The variables that the main names need."""
        return self.references(self.main_names)

    @property
    def leading_references(self) -> tuple[str, ...]:
        """The variables that targets, or without targets inputs, need; if these need none, those of all names."""
        return self.references(self.target_names if self.has_targets else self.input_names) or self.main_references

    def references(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the references to variables of a file that these names need, each once."""
        return tuple(dict.fromkeys(one for name in names for one in self.naming.references(name)))


def plan_grid(selection: Selection, description: FileDescription, may_lack_targets: bool) -> tuple[GridPlan, list[str]]:
    """Return the plan that the first file defines, and notices.

    `may_lack_targets`: for predictions. Raises DataError if the file lacks a variable that the settings name,
    ConfigError if a name or a mask is not allowed.
    """
    file, names = description.file, (selection.input_names or CICE_INPUTS, selection.target_names or (CICE_TARGET,))
    plan, lines = GridPlan(selection, *names, may_lack_targets), list[str]()
    if may_lack_targets and has_none(plan.target_names, description):
        plan = replace(plan, has_targets=False)
        lines.append(f"{file.path}: no variable {listed(plan.target_names)}: {WITHOUT_TARGETS}")
    for quantity in selection.coordinates:
        description.variable_named(quantity)
    # The ice concentration is the first target or input of that kind, if there is one.
    ice = next((name for name in plan.leading_references if quantity_of(name) is QUANTITIES[ICE_FRACTION]), None)
    leading = plan.leading_references
    plan = _spelled_out(plan, description)
    # Missing variables that the user names are reported before those that the rule needs.
    find_all(replace(plan, names=plan.main_references), description)

    def role(quantity: str) -> str:
        is_ice = quantity == ICE_FRACTION and ice is not None
        return str(ice) if is_ice else description.find_quantity(quantity, find_main(description, leading))

    with_ice = plan.has_targets or not is_absent(ICE_FRACTION, file)
    # The default inputs are variables of CICE.
    is_cice = selection.input_names is None or is_cice_history(file)
    plan = replace(plan, rule=build_point_rule(selection.domain, leading, role, with_ice, is_cice))
    if not with_ice and uses_ice(selection.domain, is_cice):
        others = "with" if selection.domain.mask_mode == "ocean" else "without"
        lines.append(
            f"{file.path}: has no ice concentration: the condition {ice_condition(selection.domain)} is not applied, "
            f"points {others} ice are also predicted"
        )
    if selection.is_area_weighted:
        area_name = selection.area_name
        plan = replace(plan, area_name=area_name, latitude_name=None if area_name else role(LATITUDE))
    return _with_all_names(plan, description), lines


def _with_all_names(plan: GridPlan, description: FileDescription) -> GridPlan:
    extra = [name for name in (plan.area_name, plan.latitude_name) if name]
    clocks = plan.naming.clocks | clocks_of(plan.rule.names, description.file)
    plan = replace(plan, naming=replace(plan.naming, clocks=clocks))
    main = plan.main_references
    names = tuple(dict.fromkeys((*main, *plan.references(plan.rule.names), *extra)))
    coordinates = tuple(name for name in names if name not in main and description.is_of_grid(name))
    return replace(plan, names=names, coordinates=coordinates)


def _spelled_out(plan: GridPlan, description: FileDescription) -> GridPlan:
    """Return the plan with one name for each level of a range in this file, and with derived variables parsed."""
    file, targets = description.file, plan.target_names
    inputs, derived = spell_out(plan.input_names, file, "variables.input_variables")
    if plan.has_targets:
        targets, of_targets = spell_out(targets, file, "variables.output_variables")
        derived |= of_targets
    needed = [one for name in (*inputs, *targets) for one in (derived[name].names if name in derived else (name,))]
    naming = Naming(derived, clocks_of(needed, file))
    return replace(plan, input_names=inputs, target_names=targets, naming=naming)


def in_degrees(plan: GridPlan, access: Mapping[str, VariableAccess], units: Mapping[str, str]) -> GridPlan:
    """Return the plan with conditions on coordinates, and areas, in degrees, also if coordinates are read in radians.

    Coordinates that are inputs may be read in radians. `units` are those in which variables are read.
    """
    inputs = plan.main_references

    def scale(name: str) -> float:
        is_converted = name not in inputs and access[name].conversion is not None
        return 1.0 if is_converted or not is_radians(units[name]) else FROM_RADIANS.scale

    conditions = tuple(
        replace(one, scale=scale(one.name)) if isinstance(one, Condition) and one.test in OF_PLACES else one
        for one in plan.rule.conditions
    )
    latitude_scale = 1.0 if plan.latitude_name is None else scale(plan.latitude_name)
    return replace(plan, rule=replace(plan.rule, conditions=conditions), latitude_scale=latitude_scale)


def find_all(plan: GridPlan, description: FileDescription) -> tuple[Access, list[str]]:
    """Return the access to each variable, along the dimensions of the targets, and notices without the file's name.

    Raises DataError, which names the setting of the variable.
    """
    inputs, targets = (frozenset(plan.references(some)) for some in (plan.input_names, plan.target_names))
    access = {name: _find_access(plan, description, name, name in inputs, name in targets) for name in plan.names}
    return _matched(plan, description, access)


def _matched(plan: GridPlan, description: FileDescription, access: Access) -> tuple[Access, list[str]]:
    """Arrange the variables along the dimensions of the targets, by name; return notices on matches of different names.

    Raises DataError if a variable has further dimensions. With `data.rules=1` dimensions match by size alone.
    """
    leading = {name: access[name] for name in plan.leading_references if name in access}
    if not leading or not plan.selection.has_named_dimensions:
        return access, []
    samples = sample_dimensions(description, leading.values())
    matched = {name: samples.match(one) for name, one in access.items()}
    lines = [line for _, of_one in matched.values() for line in of_one]
    if plan.has_targets and all(set(samples.places) - set(one.info.dimensions) for one in leading.values()):
        lines.append(f"no target has all of the dimensions {', '.join(samples.places)}: samples are all combinations")
    return {name: one for name, (one, _) in matched.items()}, list(dict.fromkeys(lines))


def _find_access(
    plan: GridPlan, description: FileDescription, name: str, is_input: bool, is_target: bool
) -> VariableAccess:
    file = description.file
    if name == plan.area_name and is_absent(name, file):
        raise MissingVariableError(
            f"{file.path}: no variable '{name}', which data.area_variable names; {describe_variables(name, file)}"
        )
    if (is_input or is_target) and is_absent(reference_of(name, file).name, file):
        key = "variables.input_variables" if is_input else "variables.output_variables"
        named = plan.selection.input_names if is_input else plan.selection.target_names
        # If targets may be missing, a trained network needs these inputs.
        is_needed = is_input and plan.may_lack_targets
        reason = "" if named is not None or is_needed else " (the default variables are those of a CICE history)"
        advice = "the network needs it: use data that has it" if is_needed else f"name those to use in {key}"
        missing = reference_of(name, file).name
        is_typed = not reason and not is_needed
        there = (
            describe_variables(missing, file) if is_typed else f"this one has {list_names(file.variables) or 'none'}"
        )
        raise MissingVariableError(f"{file.path}: no variable '{missing}'{reason}; {there}; {advice}")
    return find_access(description, name, name in plan.coordinates)


def has_none(names: Sequence[str], description: FileDescription) -> bool:
    """Return whether a file lacks all variables that the names need."""
    file = description.file
    return all(is_absent(reference_of(one, file).name, file) for one in names_needed(names, file))


def listed(names: Sequence[str]) -> str:
    """Return names in quotes, for a message."""
    return ", ".join(f"'{name}'" for name in names)
