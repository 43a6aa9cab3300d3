"""The copies in `tests/data` are those of the folder that the project was given, where that folder is at hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import PROJECT, TESTS

pytestmark = pytest.mark.fast

ORIGINALS = PROJECT.parent / "shared"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.skipif(not ORIGINALS.is_dir(), reason="no folder of originals next to the project")
@pytest.mark.parametrize("name", ["older_configs", "reference_cases"])
def test_copies_equal_the_originals(name: str) -> None:
    originals = contents(ORIGINALS / name)
    assert originals
    assert contents(TESTS / "data" / name) == originals
