"""Whatever happens to one rank, every process of the job is gone, and one line says what happened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Finished
from injected_faults import check_one_line, inject  # noqa: F401  a fixture that pytest finds by name


@pytest.mark.mpi(ranks=4)
def test_a_bug_on_one_rank_ends_all_with_one_line(
    inject: Callable[[str, int, int, int], tuple[Finished, Path]],
) -> None:
    check_one_line("bug", 2, *inject("bug", 2, 7, 0))
