"""Every reader of a run folder's texts against changes drawn by seeds: one line, or what could be read."""

from __future__ import annotations

import resource
import time
from collections import Counter
from pathlib import Path

import pytest
from fuzzed_texts import READERS, changed, write_texts
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as some

from mpitrain.errors import MpitrainError
from mpitrain.observe import report

MOSTLY_READ = ("outcome", "claim", "origin")  # what cannot be read there is as if it were not
MOST_BYTES, MOST_S = 10**9, 60.0
WERE_FAULTS = {"crate": (51393,)}  # which sixty draws do not find


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's folder with a text of each kind, and the folder above as the current one."""
    monkeypatch.setattr(report, "_draw_plots", lambda *_: {})  # drawing takes a hundred times as long
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    folder.mkdir()
    write_texts(folder)
    return folder


@pytest.mark.parametrize("kind", READERS)
def test_a_changed_text_is_read_or_refused(
    folder: Path, kind: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    name, read = READERS[kind]
    path, ended, most_s = folder / name, Counter[str](), 0.0
    whole = path.read_bytes()
    read(path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def check(seed: int) -> None:
        nonlocal most_s
        path.write_bytes(changed(whole, seed))
        started_s = time.monotonic()
        said = ""
        try:
            read(path)
        except MpitrainError as error:
            said = str(error)
        assert said.isprintable(), seed
        ended["refused" if said else "read"] += 1
        most_s = max(most_s, time.monotonic() - started_s)
        assert most_s < MOST_S, seed

    for seed in WERE_FAULTS.get(kind, ()):
        check(seed)

    @settings(
        max_examples=10_000 if request.config.getoption("--full") else 60, deadline=None, database=None,
        derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(some.integers(0, 2**63))
    def check_drawn(seed: int) -> None:
        check(seed)

    check_drawn()
    more_bytes = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    with capsys.disabled():
        print(f"\n{kind:14} {dict(ended)}; {more_bytes / 1e6:.0f} MB more, at most {most_s:.2f} s")
    assert more_bytes < MOST_BYTES
    assert ended["read" if kind in MOSTLY_READ else "refused"] > 0, "else nothing was changed"
