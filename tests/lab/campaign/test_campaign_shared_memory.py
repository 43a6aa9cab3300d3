"""A flipped bit in the ranks' shared memory: the result is right, drift is named, or the run ends within a minute."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path

import pytest
import shared_memory_flips
from conftest import launch
from killed_runs import hash_of

NUM_RANKS = 3
SECONDS_TO_END = 60.0
# A rank that has come is lost; a rank that is asleep is forgotten; a round is over early; a number is another one.
ALWAYS = (("arrived", 1), ("asleep", 1), ("round", 0), ("row", 20))
EVERY = [(place, bit) for place in shared_memory_flips.PLACES for bit in range(32)]
DAMAGED = r"mpitrain: error: rank \d on \S+: waited (\d+) s in \w+ .* for rank \d on .*, .* memory is damaged"
DRIFTED = r"mpitrain: error: .*drifted apart"
CHANGED = r"mpitrain: error: rank \d on \S+: the shared memory of this node no longer holds .* memory is damaged"
MAY_BE = {"the same hash", "drift named", "ended, the rank named", "ended, the memory named"}


def end_of(folder: Path, history: Path, place: str, bit: int) -> tuple[int, str, list[str]]:
    """Train with the flip; return exit code, hash ("" after an error), and our lines."""
    words = [f"output.model_dir={folder}", f"data.data_path={history}", "training.global_batch_size=64",
             "training.epochs=3", "training.engine=compiled"]  # fmt: skip
    done = launch([shared_memory_flips.__file__, place, str(bit), "train", *words], NUM_RANKS)
    lines = [line for line in done.our_lines if not line.startswith("mpitrain: note: ")]
    return done.returncode, "" if done.returncode else hash_of(folder)[0], lines


def judged(place: str, expected: str, ended: tuple[int, str, list[str]]) -> str:
    """Return which of the outcomes that may be this one is; or, in capitals, that it is none."""
    code, found, lines = ended
    if code == 0:
        return "the same hash" if found == expected else f"OTHER BITS {found}"
    if code == 4 and len(lines) == 1 and re.match(DRIFTED, lines[0]):
        return "drift named"
    if code == 3 and place in ("row", "round") and len(lines) == 1 and re.match(CHANGED, lines[0]):
        return "ended, the memory named"
    damaged = re.match(DAMAGED, lines[0]) if code == 3 and len(lines) == 1 else None
    if damaged and int(damaged[1]) < SECONDS_TO_END:  # as the run counts them
        return "ended, the rank named"
    return f"NONE: {code}, {lines}"


@pytest.mark.slow
def test_a_flip_stalls_nobody(
    small_history: Path, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    code, expected, _ = end_of(tmp_path / "undisturbed", small_history, "none", 0)
    assert code == 0
    table, findings, most_s = Counter[str](), {}, 0.0
    for place, bit in EVERY if request.config.getoption("--full") else ALWAYS:
        started_s = time.monotonic()
        said = judged(place, expected, end_of(tmp_path / f"{place}-{bit}", small_history, place, bit))
        most_s = max(most_s, time.monotonic() - started_s)
        table[f"{place:8} {said}"] += 1
        if said not in MAY_BE:
            findings[place, bit] = said
    with capsys.disabled():
        print("", *(f"{times:4} {said}" for said, times in sorted(table.items())), f"at most {most_s:.1f} s", sep="\n")
    assert findings == {}
