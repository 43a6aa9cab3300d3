"""The gates of a certificate: ways to train a run again, after which its weights must have the same bits.

`mpitrain help certificate` describes them for users; `VERSION` is the version of that description.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mpitrain.cluster import INSTRUCTION_SETS, detect_usable_core_count
from mpitrain.errors import LaunchError, MpitrainError, UserError
from mpitrain.train import weights_sha256
from mpitrain.verify.invariance.invariance import compare_results
from mpitrain.verify.invariance.runs import Recipe, Result, Runner

VERSION = 1
"""Increased when the meaning of an existing gate changes."""
Say = Callable[[str], None]
_STEPS = "@steps="
_MOST_RANKS, _MOST_RANKS_A_CORE = 64, 8
_MODEL = ("weights", "model file without the identity of its run")


@dataclass(frozen=True)
class Gate:
    """A gate with its `name`, such as "ranks:1,3@steps=10", its kind and its values.

    `num_steps`: the number of steps of each training, None for the whole run.
    """

    name: str
    kind: str
    values: tuple[str, ...]
    num_steps: int | None

    def recipes(self, num_ranks: int, num_steps: int) -> list[Recipe]:
        """Return the recipes to train a run of `num_steps` steps on `num_ranks` ranks again, each from scratch."""
        return _KINDS[self.kind](Recipe(num_ranks, attempt=1), self.values, num_steps)


def _is_count(text: str, most_digits: int) -> bool:
    return text.isdecimal() and len(text) <= most_digits and int(text) > 0


def _restart(again: Recipe, _: Sequence[str], num_steps: int) -> list[Recipe]:
    if num_steps < 2:
        raise UserError("gate restart: one step only, nothing to stop; give another gate")
    return [replace(again, stop_at=num_steps // 2)]


_KINDS: dict[str, Callable[[Recipe, Sequence[str], int], list[Recipe]]] = {
    "repeat": lambda again, _, __: [again],
    "restart": _restart,
    "ranks": lambda again, values, _: [replace(again, num_ranks=int(value)) for value in values],
    "instruction-sets": lambda again, values, _: [
        replace(again, settings=(f"compute.instruction_set={value}",)) for value in values
    ],
}
# Checks of the values of a kind; other kinds have no values.
_VALUES: dict[str, Callable[[str], bool]] = {
    "ranks": lambda value: _is_count(value, 8),
    "instruction-sets": lambda value: value in INSTRUCTION_SETS,
}


def named_gates(names: Sequence[str]) -> tuple[Gate, ...]:
    """Return the gates of these names. Raises UserError for a wrong name and for several numbers of steps."""
    gates = tuple(map(_named, dict.fromkeys(names)))
    if len({gate.num_steps for gate in gates}) > 1:
        raise UserError(
            f"--gates {' '.join(names)}: a certificate is of a whole run or of a checkpoint; give all gates the same "
            "@steps=N, or none"
        )
    return gates


def _named(name: str) -> Gate:
    way, at, steps = name.partition(_STEPS)
    kind, colon, values = way.partition(":")
    found = tuple(values.split(",")) if colon else ()
    is_fit = _VALUES.get(kind, lambda _: False)
    if kind not in _KINDS or bool(found) != (kind in _VALUES) or not all(map(is_fit, found)):
        raise UserError(
            f"--gates {name}: no such gate; there are repeat, restart, ranks:1,3 (numbers of ranks) and "
            f"instruction-sets:x86-64-v3,x86-64 (of {', '.join(INSTRUCTION_SETS)}), each also with {_STEPS}N"
        )
    if at and not _is_count(steps, 18):
        raise UserError(f"--gates {name}: {_STEPS}N needs a number of steps, such as {way}{_STEPS}10")
    return Gate(name, kind, found, int(steps) if at else None)


@dataclass(frozen=True)
class Tried:
    """Results: names of gates that passed and failed, and the hash of the checkpoint that shorter trainings reach."""

    passed: tuple[str, ...]
    failed: tuple[str, ...]
    checkpoint: str = ""


def try_gates(
    gates: Sequence[Gate], runner: Runner, num_ranks: int, num_steps: int, known: tuple[str, str], say: Say
) -> Tried:
    """Train for each gate and compare: whole runs with the `known` hashes, shorter ones with a repetition of the run.

    If a training raises an error, its gate is in neither list and the error is printed; if no gate is left, the first
    error is raised. An error in the repetition of the run is raised.
    """
    passed, failed, errors = list[str](), list[str](), list[MpitrainError]()
    steps = gates[0].num_steps
    first = None if steps is None else _trained(runner, Recipe(num_ranks), steps)
    for gate in gates:
        try:
            found = (_trained(runner, recipe, steps) for recipe in gate.recipes(num_ranks, steps or num_steps))
            difference = next(filter(None, (_difference(one, first, known) for one in found)), "")
        except MpitrainError as error:
            say(f"gate {gate.name}: not tried: {error}")
            errors.append(error)
            continue
        say(f"gate {gate.name}: {f'DIFFERS: {difference}' if difference else 'the same bits'}")
        (failed if difference else passed).append(gate.name)
    if errors and not passed and not failed:
        raise errors[0]
    return Tried(tuple(passed), tuple(failed), "" if first is None else checkpoint_sha256(first))


def _trained(runner: Runner, recipe: Recipe, steps: int | None) -> Result:
    most = max(_MOST_RANKS, _MOST_RANKS_A_CORE * detect_usable_core_count())
    if recipe.num_ranks > most:
        raise LaunchError(f"{recipe.num_ranks} ranks are too many for this machine; give at most {most} ranks")
    result = runner.result_of(recipe, steps)
    if result.num_steps != steps if steps else "" in result.model:
        raise MpitrainError(f"a training was interrupted, after {result.num_steps} steps; try again")
    return result


def _difference(found: Result, first: Result | None, known: tuple[str, str]) -> str:
    if first is not None:
        return str(compare_results(first, found) or "")
    different = [name for name, one, other in zip(_MODEL, found.model, known, strict=True) if one != other]
    return ", ".join(f"the SHA-256 of the {name}" for name in different)


def checkpoint_sha256(result: Result) -> str:
    """Return one hash of all tensors of a checkpoint, in the order of their names."""
    tensors: dict[str, Any] = dict(sorted(result.tensors.items()))
    return weights_sha256(tensors)
