"""Display of a run in notebooks: tables of numbers, and the report page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from mpitrain.errors import one_line

_ROWS_SHOWN = 20


class Table(dict[str, list[Any]]):
    """Dictionary of columns by name; `pandas.DataFrame(table)` converts it."""

    @classmethod
    def of_records(cls, records: Sequence[Mapping[str, Any]]) -> Table:
        """Return the numbers and texts of records as columns, with None for values that a record lacks."""
        names = dict.fromkeys(
            name for one in records for name, value in one.items() if not isinstance(value, dict | list)
        )
        return cls({name: [one.get(name) for one in records] for name in names})

    def __repr__(self) -> str:
        """Return the last rows as text."""
        rows = [tuple(self), *self._rows()]
        widths = [max(len(_shown(row[number])) for row in rows) for number in range(len(self))]
        return "\n".join(
            "  ".join(_shown(cell).rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
        )

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(_shown(cell))}</td>' for cell in row)}</tr>" for row in self._rows()
        )
        return f"<table><tr>{head}</tr>{body}</table>"

    def _rows(self) -> list[tuple[Any, ...]]:
        return list(zip(*self.values(), strict=True))[-_ROWS_SHOWN:]


def _shown(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else "" if value is None else one_line(str(value))


class Report:
    """The report page of a run: path-like, accepted by `open` and `Path`; a notebook shows the page itself."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> str:
        """Return the path."""
        return str(self.path)

    def __str__(self) -> str:
        """Return the path."""
        return str(self.path)

    def __repr__(self) -> str:
        """Return the representation of the path."""
        return repr(self.path)

    def _repr_html_(self) -> str:
        if not self.path.is_file():
            return escape(f"{self.path}: not written yet")
        page = escape(self.path.read_text(encoding="utf-8", errors="replace"))
        # Without `sandbox` a page from another source could run scripts in the notebook; mpitrain's have none.
        return f'<iframe sandbox="" srcdoc="{page}" width="100%" height="700" style="border:0"></iframe>'
