"""The report's section on where the time of the steps goes, made from a record of `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from mpitrain.observe.step_times import NOTABLE_SHARE, describe_step

_COLUMNS = ("computing", "reading", "communicating", "waiting")


def render_timing(timing: Mapping[str, Any]) -> str:
    """Return HTML: a sentence, and a table of the ranks' seconds a step and their memory."""
    sentence = (
        f"{describe_step(timing['step_s'])} a step, {timing['samples_per_s']:,.0f} samples/s in all. {_slowest(timing)}"
    )
    head = "".join(f"<th>{escape(name)}</th>" for name in ("rank", *_COLUMNS, "memory"))
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in _rows(timing["ranks"]))
    return f'<p>{escape(sentence)}</p><div class="wide"><table><tr>{head}</tr>{rows}</table></div>'


def _rows(ranks: Mapping[str, Any]) -> list[list[str]]:
    """Return a row a rank; of very many ranks, rows of the least, the median and the most."""
    is_listed = isinstance(ranks["waiting"], list)
    keys: Any = range(len(ranks["waiting"])) if is_listed else list(ranks["waiting"])
    return [
        [str(key), *(describe_step(ranks[name][key]) for name in _COLUMNS), f"{ranks['memory_mib'][key]:,.0f} MiB"]
        for key in keys
    ]


def _slowest(timing: Mapping[str, Any]) -> str:
    slowest = timing.get("slowest")
    if slowest is None:
        return ""
    if slowest["share"] < NOTABLE_SHARE:
        return "No rank holds up the others for a tenth of the step."
    return (
        f"Rank {slowest['rank']} on {slowest['host']} is slow in {slowest['cause']}: the others wait "
        f"{describe_step(slowest['behind_s'])} a step for it ({100 * slowest['share']:.0f} %)."
    )
