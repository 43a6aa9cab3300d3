"""Every reader of files against changes that hypothesis draws: one line, little memory, no end of the process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from fuzzed_files import CHANGES, ENDLESS, KINDS, Change, Reader
from hypothesis import HealthCheck, Phase, given, settings

EXPECTED = {"refused", "opened, then refused", "read", ENDLESS}
MOST_BYTES, MOST_S = 10**9, 60.0


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    reader = Reader(tmp_path_factory.mktemp("fuzzed"))
    yield reader
    reader.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_file_is_read_or_refused(
    reader: Reader, kind: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    count, table = (10_000 if request.config.getoption("--full") else 40), Counter[str]()
    said, most_bytes, most_s = reader.read(kind, [])
    assert said == "read", "the whole file"

    @settings(
        max_examples=count, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(CHANGES)
    def check(changes: list[Change]) -> None:
        nonlocal most_bytes, most_s
        said, peak, seconds = reader.read(kind, changes)
        table[said] += 1
        most_bytes, most_s = max(most_bytes, peak), max(most_s, seconds)
        assert said in EXPECTED, said
        assert peak < MOST_BYTES, f"{peak / 1e6:.0f} MB"

    check()
    with capsys.disabled():
        ended = ", ".join(f"{times} {said}" for said, times in sorted(table.items()))
        print(f"\n{kind:14} {ended}; at most {most_bytes / 1e6:.0f} MB, {most_s:.2f} s")
    assert table["refused"] + table["opened, then refused"] > 0, "else nothing was changed"
