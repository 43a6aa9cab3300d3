"""`mpitrain verify --invariance`: perform the same run in other ways, and compare all its results bit for bit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mpitrain.config import RunConfig, load_run_config
from mpitrain.errors import MpitrainError, writing
from mpitrain.synthetic.history import write_synthetic_history
from mpitrain.verify.compare import bits_of, ulp_distance
from mpitrain.verify.invariance.checks import ERP, ERS, PEM, PET, REP, Check, known_reasons
from mpitrain.verify.invariance.runs import Recipe, Result, Runner
from mpitrain.verify.trace import Array

Say = Callable[[str], None]
DEFAULT_RANKS = (2, 1, 3)
_SMALL_CASE = ("training.epochs=4",)
ResultAt = Callable[[int], tuple[Result, Result]]
# Each probe is two runs; more of them would take minutes.
MOST_PROBES = 12


@dataclass(frozen=True)
class InvarianceRequest:
    """What to check. `ranks`: the first number is for the run that others are compared with; `flags`: of `train`."""

    output: Path
    ranks: tuple[int, ...] = DEFAULT_RANKS
    config_path: Path | None = None
    overrides: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckOutcome:
    """Result of one check: `verdict` is "same", "DIFFERS", "REFUSED" or "not run"; `reasons` explain it."""

    check: Check
    how: str
    verdict: str
    detail: str = ""
    reasons: tuple[str, ...] = ()
    difference: Difference | None = None

    @property
    def passed(self) -> bool:
        """True unless the result differs or the run was refused."""
        return self.verdict in ("same", "not run")


@dataclass(frozen=True)
class Invariance:
    """The results of `mpitrain verify --invariance`."""

    outcomes: tuple[CheckOutcome, ...]
    num_ranks: int
    num_steps: int
    wall_time_s: float

    @property
    def passed(self) -> bool:
        """True if all checks passed."""
        return all(outcome.passed for outcome in self.outcomes)


def check_invariance(request: InvarianceRequest, say: Say) -> Invariance:
    """Run the configuration in all ways and compare. Raises the errors of the settings and of the first run."""
    started_s = time.monotonic()
    config = load_run_config(request.config_path, request.overrides).config
    folder = (request.output / "runs").absolute()
    with writing(request.output / "runs", "choose another --output"):
        folder.mkdir(parents=True, exist_ok=True)
    settings = [*request.overrides, *request.flags, *_small_case(request, config, folder)]
    runner = Runner(folder, request.config_path, settings, config.training.max_steps)
    first = Recipe(request.ranks[0])
    say(f"the run itself, {_ranks(first.num_ranks)}")
    num_steps = runner.result_of(first).num_steps
    outcomes = []
    for check, how, recipe in _plan(request, first, num_steps):
        if recipe is None:
            outcome = CheckOutcome(check, how, "not run")
        else:
            num_ranks = first.num_ranks, recipe.num_ranks, recipe.resumed_on or 1
            outcome = _compare(runner, tuple(known_reasons(check, config, num_ranks)), check, how, first, recipe)
        say(f"  {check.name} {how}: {outcome.verdict}{' ' + outcome.detail if outcome.detail else ''}")
        outcomes.append(outcome)
    return Invariance(tuple(outcomes), first.num_ranks, num_steps, time.monotonic() - started_s)


def _small_case(request: InvarianceRequest, config: RunConfig, folder: Path) -> Sequence[str]:
    """Return the settings of a small case if no data is given: one synthetic file for all runs, and few epochs."""
    if config.data.data_path is not None:
        return ()
    history = folder / "history.nc"
    write_synthetic_history(history, seed=config.seed, num_latitudes=48, num_longitudes=72)
    given = request.config_path is not None or any("training.epochs" in one for one in request.overrides)
    return (f"data.data_path={history}", *(() if given else _SMALL_CASE))


def _plan(request: InvarianceRequest, first: Recipe, num_steps: int) -> Iterator[tuple[Check, str, Recipe | None]]:
    """Yield each check, a description of how it is done, and its recipe; None if it cannot be done."""
    others, stop = request.ranks[1:], num_steps // 2
    stopped = replace(first, stop_at=stop)
    for check in request.checks:
        if check.needs_mpi_counts and not others:
            yield check, "--ranks names one number only", None
        elif check in (ERS, ERP) and stop == 0:
            yield check, "one step only: nothing to stop", None
        elif check is REP:
            yield check, _ranks(first.num_ranks), replace(first, attempt=1)
        elif check is PET:
            yield check, f"{first.num_ranks} processes", replace(first, by_torchrun=True)
        elif check is PEM:
            yield from ((check, _ranks(count), Recipe(count)) for count in others)
        elif check is ERS:
            yield check, f"at step {stop} of {num_steps}", stopped
        else:
            yield check, f"at step {stop}, then {_ranks(others[0])}", replace(stopped, resumed_on=others[0])


def _compare(
    runner: Runner, reasons: tuple[str, ...], check: Check, how: str, first: Recipe, recipe: Recipe
) -> CheckOutcome:
    try:
        difference = compare_results(runner.result_of(first), runner.result_of(recipe))
        if difference is None:
            return CheckOutcome(check, how, "same")
        difference = first_difference(
            lambda step: (runner.result_of(first, step), runner.result_of(recipe, step)),
            difference,
            recipe.stop_at or 0,
        )
    except MpitrainError as error:
        return CheckOutcome(check, how, "REFUSED", str(error), reasons)
    return CheckOutcome(check, how, "DIFFERS", str(difference), reasons, difference)


def _ranks(count: int) -> str:
    return f"{count} rank{'s' if count > 1 else ''}"


@dataclass(frozen=True)
class Difference:
    """The first difference of two results. `step`: the smallest step that was tried after which they differ."""

    name: str
    index: tuple[int, ...]
    expected: float | str
    found: float | str
    ulps: int | None
    num_tensors: int
    step: int

    def __str__(self) -> str:
        location = f"{self.name}{list(self.index) if self.index else ''}"
        ulps = f" ({self.ulps} ulp)" if self.ulps is not None else ""
        more = f"; {self.num_tensors} tensors in all" if self.num_tensors > 1 else ""
        return f"after step {self.step}: {location}: {self.expected!r}, here {self.found!r}{ulps}{more}"


def compare_results(expected: Result, found: Result) -> Difference | None:
    """Return the first difference: in tensors, parameters first, otherwise in the state or metrics; None if equal."""
    step = min(expected.num_steps, found.num_steps)
    names = sorted(set(expected.tensors) | set(found.tensors), key=_parameters_first)
    different = [name for name in names if not _same_bits(expected.tensors.get(name), found.tensors.get(name))]
    if different:
        return _difference_of(different[0], expected, found, len(different), step)
    for kind, one, other in (
        ("state", expected.state, found.state), ("metrics", list(expected.metrics), list(found.metrics)),
    ):  # fmt: skip
        if one != other:
            return Difference(kind, (), repr(one), repr(other), None, 1, step)
    return None


def first_difference(result_at: ResultAt, known: Difference, same_at: int) -> Difference:
    """Return the difference at the first step that shows any, after `same_at`; `known` is the one at the end.

    `result_at(step)` returns both results after a step. Tries 1, 2, 4, ... steps, then halves the interval, since most
    differences arise in the first steps.
    """
    earliest, stride = known, 1
    for _ in range(MOST_PROBES):
        if earliest.step - same_at <= 1:
            break
        step = min(same_at + stride, earliest.step - 1) if stride else (same_at + earliest.step) // 2
        difference = compare_results(*result_at(step))
        if difference is None:
            same_at, stride = step, 2 * stride
        else:
            earliest, stride = difference, 0
    return earliest


def _parameters_first(name: str) -> tuple[int, str]:
    kinds = ("model.", "optimizer.", "engine.", "average.", "best.")
    return next((number for number, kind in enumerate(kinds) if name.startswith(kind)), len(kinds)), name


def _same_bits(one: Array | None, other: Array | None) -> bool:
    return one is not None and other is not None and _kind(one) == _kind(other) and one.tobytes() == other.tobytes()


def _difference_of(name: str, expected: Result, found: Result, num_tensors: int, step: int) -> Difference:
    one, other = expected.tensors.get(name), found.tensors.get(name)
    if one is None or other is None or _kind(one) != _kind(other):
        return Difference(name, (), _kind(one), _kind(other), None, num_tensors, step)
    index = tuple(int(i) for i in np.argwhere(bits_of(one) != bits_of(other))[0])
    ulps = int(ulp_distance(one, other)[index])
    return Difference(name, index, one[index].item(), other[index].item(), ulps, num_tensors, step)


def _kind(values: Array | None) -> str:
    return "missing" if values is None else f"{values.dtype} of shape {values.shape}"
