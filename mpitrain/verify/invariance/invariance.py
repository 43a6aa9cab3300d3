"""`mpitrain verify --invariance`: do the same run in other ways, and compare all that it leaves, bit for bit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mpitrain.config import RunConfig, load_run_config
from mpitrain.errors import MpitrainError, writing
from mpitrain.synthetic.history import write_synthetic_history
from mpitrain.verify.invariance.checks import ERP, ERS, PEM, PET, REP, Check, known_reasons
from mpitrain.verify.invariance.differences import Difference, compare_results, first_difference
from mpitrain.verify.invariance.runs import Recipe, Runner

Say = Callable[[str], None]
DEFAULT_RANKS = (2, 1, 3)
_SMALL_CASE = ("training.epochs=4",)


@dataclass(frozen=True)
class InvarianceRequest:
    """What to check. `ranks`: the first number is that of the run with which all others are compared."""

    output: Path
    ranks: tuple[int, ...] = DEFAULT_RANKS
    config_path: Path | None = None
    overrides: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True)
class CheckOutcome:
    """What came of one check: `verdict` is "same", "DIFFERS", "REFUSED" or "not run"; `reasons` explain it."""

    check: Check
    how: str
    verdict: str
    detail: str = ""
    reasons: tuple[str, ...] = ()
    difference: Difference | None = None

    @property
    def passed(self) -> bool:
        """True unless a result differs, or there is none."""
        return self.verdict in ("same", "not run")


@dataclass(frozen=True)
class Invariance:
    """Everything that `mpitrain verify --invariance` found."""

    outcomes: tuple[CheckOutcome, ...]
    num_ranks: int
    num_steps: int
    wall_time_s: float

    @property
    def passed(self) -> bool:
        """True if no check differs."""
        return all(outcome.passed for outcome in self.outcomes)


def check_invariance(request: InvarianceRequest, say: Say) -> Invariance:
    """Run the configuration in all ways and compare. Raises the user's errors, of the settings and of the first run."""
    started_s = time.monotonic()
    config = load_run_config(request.config_path, request.overrides).config
    folder = (request.output / "runs").absolute()
    with writing(request.output / "runs", "choose another --output"):
        folder.mkdir(parents=True, exist_ok=True)
    settings = [*request.overrides, *_small_case(request, config, folder)]
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
    """Return the settings of a case for users who gave no data: one small file for all runs, and few epochs."""
    if config.data.data_path is not None:
        return ()
    history = folder / "history.nc"
    write_synthetic_history(history, seed=config.seed, num_latitudes=48, num_longitudes=72)
    given = request.config_path is not None or any("training.epochs" in one for one in request.overrides)
    return (f"data.data_path={history}", *(() if given else _SMALL_CASE))


def _plan(request: InvarianceRequest, first: Recipe, num_steps: int) -> Iterator[tuple[Check, str, Recipe | None]]:
    """Yield each check, how it is done, and its recipe; None where it cannot be done."""
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
