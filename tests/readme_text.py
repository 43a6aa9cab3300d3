"""The README's fenced blocks and tables."""

from __future__ import annotations

import re
from dataclasses import dataclass

from conftest import PROJECT

README = PROJECT / "README.md"
# These two are run by .ci/run, in a clean copy and clean environments.
RUN_BY_CI = ("pip install -c tests/constraints.txt '.[mpich]' && mpirun -np 8 python -m mpitrain", "bash tests/run.sh")


@dataclass(frozen=True)
class Block:
    """A fenced block of the README."""

    language: str
    text: str


def blocks() -> list[Block]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [Block(language, text) for language, text in found]


def table_after(words: str) -> list[list[str]]:
    """Return the cells of the first table after `words`, without its head."""
    text = README.read_text()
    lines = text[text.index(words) :].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows: list[list[str]] = []
    while lines[start].startswith("|"):
        rows.append([cell.strip() for cell in lines[start].strip("|").split("|")])
        start += 1
    return rows[2:]
