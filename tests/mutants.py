"""Small changes of the package, one at a time: do the tests that the map of promises names for the code notice them?

    python tests/mutants.py [--seed N] [--count N] [--tiers fast,ranks,machine] [--covering FOLDER] [MODULE ...]

MODULE is a file of the package (`mpitrain/comm/reduction.py`); without any, modules of all rooms are drawn by the seed.
Each change is made in a temporary copy of the project, never in the tree. Of the tier `fast` those tests run that pass
through the changed line, as covering.py recorded them, the quickest of the room first; of the others, those that the
map names for the code, then the rest of its room. They end at the first failure. A change that makes the tests hang is
noticed, too. equivalent_mutants.yaml lists changes that no test can notice, each with its reason.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).parents[1]
EQUIVALENT = PROJECT / "tests" / "equivalent_mutants.yaml"
ROOMS = ("train", "comm", "data", "inference", "export", "ensemble", "config", "observe")
LIMITS_S = {"ranks": 600.0, "machine": 1200.0}
# The tier `fast` has as long as its tests took before, so many times over, and what collecting takes.
SLOWER, COLLECTING_S = 5.0, 60.0
MOST_COVERING_S = 60.0
NUM_TRIES = 100
_OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: its module below the project, where and what it is, and the module's text with it.

    The lines are those of its statement, as far as to the change.
    """

    module: str
    lines: tuple[int, int]
    kind: str
    text: str
    source: str


def changes_of(node: Any) -> Iterator[tuple[str, Callable[[], None]]]:
    """The kinds of change that a node of the syntax tree can have, each with what makes it there."""
    match node:
        case ast.BinOp(op=op) if type(op) in _OTHER and not _is_text(node):
            yield "operator", lambda: setattr(node, "op", _OTHER[type(op)]())
        case ast.Compare(ops=[op]) if type(op) in _OTHER:
            yield "comparison", lambda: setattr(node, "ops", [_OTHER[type(op)]()])
        case ast.BoolOp(values=[first, *_]):
            yield "dropped condition", lambda: setattr(node, "values", [first, first])
        case ast.UnaryOp(op=ast.USub()):
            yield "sign", lambda: setattr(node, "op", ast.UAdd())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "dropped not", lambda: setattr(node, "operand", ast.UnaryOp(ast.Not(), operand))
    yield from _changes_of_values(node)


def _changes_of_values(node: Any) -> Iterator[tuple[str, Callable[[], None]]]:
    match node:
        case ast.keyword(arg="axis" | "dim", value=ast.Constant(value=int(axis))):
            yield "axis", lambda: setattr(node.value, "value", 0 if axis else 1)
        case ast.Constant(value=bool(value)):
            yield "wrong constant", lambda: setattr(node, "value", not value)
        case ast.Constant(value=int(value) | float(value)):
            yield "wrong constant", lambda: setattr(node, "value", value + 1)
        case ast.AugAssign(op=op) if type(op) in _OTHER:
            yield "operator", lambda: setattr(node, "op", _OTHER[type(op)]())
        case ast.Call(args=[first, second, *rest]) if not any(isinstance(one, ast.Starred) for one in node.args):
            yield "swapped arguments", lambda: setattr(node, "args", [second, first, *rest])
        case ast.Expr(value=ast.Call()):
            yield "dropped call", lambda: setattr(node, "value", ast.Constant(None))


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, ast.JoinedStr | ast.Constant) and not _is_number(side) for side in (node.left, node.right)
    )


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def places_of(tree: ast.Module) -> list[Any]:
    """The nodes inside of functions, where a change is one of behaviour; texts of errors are left alone."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    inside = (place for function in functions for statement in function.body for place in ast.walk(statement))
    silent = {
        id(place) for node in ast.walk(tree) if isinstance(node, ast.Raise | ast.JoinedStr) for place in ast.walk(node)
    }
    return list({id(place): place for place in inside if id(place) not in silent}.values())


def draw(module: str, random_: random.Random) -> Mutant | None:
    """One change of a module; None where there is nothing to change."""
    source = (PROJECT / module).read_text()
    tree = ast.parse(source)
    found = [(node, kind, change) for node in places_of(tree) for kind, change in changes_of(node)]
    if not found:
        return None
    # By kind first: constants and calls would be nearly all.
    kind = random_.choice(sorted({kind for _, kind, _ in found}))
    node, _, change = random_.choice([one for one in found if one[1] == kind])
    line, lines = node.lineno, (_statement_of(node, tree).lineno, node.end_lineno)
    change()
    text = source.split("\n")[line - 1].strip()
    return Mutant(module, lines, kind, text, ast.unparse(ast.fix_missing_locations(tree)))


def _statement_of(node: ast.AST, tree: ast.Module) -> ast.stmt:
    """The innermost statement that a node is, or stands in."""
    around = [
        one for one in ast.walk(tree) if isinstance(one, ast.stmt) and any(node is part for part in ast.walk(one))
    ]
    return max(around, key=lambda one: one.lineno)


def map_tests(module: str, tier: str) -> list[str]:
    """What the map names for the code of a module, those of the longest path first; then the rest of the room."""
    promises = yaml.safe_load((PROJECT / "tests" / "promises.yaml").read_text())
    inside = module.removeprefix("mpitrain/")
    close: list[tuple[int, str]] = []
    for promise in promises:
        lengths = [len(path) for path in promise["code"] if inside == path or inside.startswith(f"{path}/")]
        close += [(-max(lengths), f"tests/{test}") for test in promise.get(tier, ()) if lengths]
    named = list(dict.fromkeys(test for _, test in sorted(close, key=lambda one: one[0])))
    room = room_of(module)
    return [*named, *([room] if (PROJECT / room).is_dir() else [])]


def room_of(module: str) -> str:
    """The folder of the tests of a module's room."""
    return f"tests/{module.split('/')[1]}"


def covering_tests(mutant: Mutant, recordings: Iterable[Path]) -> tuple[list[str], float]:
    """The fast tests that pass through the changed lines, and their seconds: those of the room, the quickest, first."""
    first, last = mutant.lines
    found: dict[str, float] = {}
    for path in recordings:
        recorded = json.loads(path.read_text())
        by_line = recorded["lines"].get(mutant.module, {})
        tests = {test for line, tests in by_line.items() if first <= int(line) <= last for test in tests}
        found |= {test: recorded["seconds"][test] for test in tests & set(recorded["seconds"])}
    is_far = {test: not test.startswith(f"{room_of(mutant.module)}/") for test in found}
    in_order = sorted(found, key=lambda test: (is_far[test], found[test]))
    until = list(itertools.accumulate(found[test] for test in in_order))
    few = [test for test, seconds in zip(in_order, until, strict=True) if seconds < MOST_COVERING_S] or in_order[:1]
    return few, sum(found[test] for test in few)


def record_rooms(copy: Path, folder: Path) -> list[Path]:
    """Record which fast tests pass through which lines, room by room, where `folder` has no recording of it."""
    folder.mkdir(parents=True, exist_ok=True)
    places = [path for path in sorted((copy / "tests").iterdir()) if path.is_dir() and list(path.glob("test_*.py"))]
    for place in places:
        recording = folder / f"{place.name}.json"
        if not recording.exists():
            options = ["-p", "covering", "-q", "--tb=short", "-m", "fast", f"tests/{place.name}"]
            run_pytest(copy, options, None, {"COVERING": str(recording)})
            print(f"recorded which lines the tests of {place.name} pass through", flush=True)
    return sorted(folder.glob("*.json"))


def copy_project(folder: Path) -> Path:
    """Copy what git knows or would know, and nothing else, so that no change reaches the tree."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    for name in names.split("\0"):
        if name and (PROJECT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, folder / name)
    return folder


def run_pytest(copy: Path, options: Sequence[str], limit_s: float | None, environ: dict[str, str]) -> tuple[int, str]:
    """Run pytest in the copy and return its exit code and what it printed; raises subprocess.TimeoutExpired."""
    paths = os.pathsep.join([str(copy), str(copy / "tests"), os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", **environ}
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options], cwd=copy, env=environ, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return process.returncode, said


def failing_test(copy: Path, tier: str, tests: Sequence[str], limit_s: float) -> str | None:
    """The first of the tests that notices the change in `copy`; None where all pass."""
    if not tests:
        return None
    try:
        code, said = run_pytest(copy, ["-q", "-x", "-m", tier, "--no-header", "--tb=no", *tests], limit_s, {})
    except subprocess.TimeoutExpired:
        return f"no end within {limit_s:.0f} s"
    if code in (0, 5):  # 5: no test of this tier
        return None
    return first_failed(said)


def first_failed(said: str) -> str:
    """Return the first test that pytest names as failed, whose parameters may hold spaces; else its last line."""
    failed = [line for line in said.split("\n") if line.startswith(("FAILED ", "ERROR "))]
    return failed[0].partition(" ")[2].partition(" - ")[0] if failed else said.strip().split("\n")[-1]


def judge(mutant: Mutant, copy: Path, tiers: Sequence[str], recordings: Sequence[Path]) -> tuple[str, str]:
    """The tier that notices a change and its test; `survived` where none does."""
    target = copy / mutant.module
    original = target.read_text()
    target.write_text(mutant.source)
    try:
        for tier in tiers:
            if tier == "fast":
                tests, seconds = covering_tests(mutant, recordings)
                noticed = failing_test(copy, tier, tests, SLOWER * seconds + COLLECTING_S)
            else:
                noticed = failing_test(copy, tier, map_tests(mutant.module, tier), LIMITS_S[tier])
            if noticed is not None:
                target.write_text(original)
                check_is_green(copy, tier, noticed)
                return tier, noticed
        return "survived", ""
    finally:
        target.write_text(original)


def check_is_green(copy: Path, tier: str, test: str) -> None:
    """Exit where the test that noticed a change fails without it as well: it tells nothing."""
    if "::" in test and failing_test(copy, tier, [test], LIMITS_S.get(tier, COLLECTING_S)) is not None:
        raise SystemExit(f"{test} fails without any change: mend it first")


def modules_of_all_rooms() -> list[str]:
    found = (path for room in ROOMS for path in sorted((PROJECT / "mpitrain" / room).rglob("*.py")))
    return [str(path.relative_to(PROJECT)) for path in found if path.stat().st_size > 0]


def draw_many(modules: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """So many changes: of each module in turn, or of rooms in turn where no module is named."""
    random_ = random.Random(seed)
    mutants: dict[tuple[str, str], Mutant] = {}
    for _ in range(count * NUM_TRIES):
        room = ROOMS[len(mutants) % len(ROOMS)]
        pool = modules or [one for one in modules_of_all_rooms() if one.startswith(f"mpitrain/{room}/")]
        module = pool[len(mutants) % len(pool)] if modules else random_.choice(pool)
        mutant = draw(module, random_)
        if mutant is not None:
            mutants.setdefault((mutant.module, mutant.source), mutant)
        if len(mutants) == count:
            break
    return list(mutants.values())


def is_equivalent(mutant: Mutant) -> bool:
    """Tell whether the list of changes that no test can notice has this one."""
    listed = yaml.safe_load(EQUIVALENT.read_text()) or []
    return any(
        (one["module"], one["kind"], one["text"]) == (mutant.module, mutant.kind, mutant.text)
        and one.get("with", "") in mutant.source
        for one in listed
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--first", type=int, default=1, help="begin at this one of them")
    parser.add_argument("--tiers", default="fast,ranks,machine")
    parser.add_argument("--covering", type=Path, help="keep the recordings in this folder, and use those that it has")
    asked = parser.parse_args()
    mutants = draw_many(asked.modules, asked.count, asked.seed)
    with tempfile.TemporaryDirectory() as scratch:
        copy = copy_project(Path(scratch) / "copy")
        recordings = record_rooms(copy, asked.covering or Path(scratch) / "covering")
        found = judge_all(mutants, asked.first, lambda mutant: judge(mutant, copy, asked.tiers.split(","), recordings))
    total = sum(found.values()) - found["equivalent"]
    print(f"noticed: {total - found['survived']} of {total}; " + ", ".join(f"{tier} {n}" for tier, n in found.items()))
    return 0


def judge_all(mutants: Sequence[Mutant], first: int, judge: Callable[[Mutant], tuple[str, str]]) -> Counter[str]:
    """Judge each change, print one line of it, and return how many the tiers noticed."""
    found: Counter[str] = Counter()
    for number, mutant in enumerate(mutants[first - 1 :], start=first):
        started_s = time.monotonic()
        noticed_in, test = ("equivalent", "") if is_equivalent(mutant) else judge(mutant)
        found[noticed_in] += 1
        place = f"{mutant.module}:{mutant.lines[1]}  {mutant.kind}  `{mutant.text}`"
        print(f"{number:3d}  {noticed_in:8s}  {time.monotonic() - started_s:5.0f} s  {place}  {test}", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
