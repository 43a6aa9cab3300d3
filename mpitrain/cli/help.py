"""The command `help`: shows the topics in `mpitrain/help`, one Markdown file each. Loads rich only in a terminal."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path
from typing import Any

from mpitrain.errors import UserError, one_line

TOPICS = Path(__file__).parents[1] / "help"
_PAGE_WIDTH = 120


def add_help_command(commands: Any) -> None:
    """Add `help` to argparse's subparsers."""
    text = "explain a topic: data, networks, export, cluster, and more; without a topic, list them"
    explain = commands.add_parser("help", help=text, description=f"{text[0].upper()}{text[1:]}.")
    explain.add_argument("topic", nargs="*", metavar="TOPIC", help="such as data, or long runs")
    explain.set_defaults(handler=_run_help, all_commands=commands, one_process=True)


def topics() -> dict[str, str]:
    """Return a dictionary from topic names to titles, in alphabetical order."""
    return {path.stem: _title(path) for path in sorted(TOPICS.glob("*.md"))}


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.readline().lstrip("#").strip()


def _run_help(options: argparse.Namespace) -> int:
    name = "-".join(options.topic).lower()
    if name:
        _show(_text_of(name, tuple(options.all_commands.choices)))
    else:
        sys.stdout.write(_list_of_topics())
    return 0


def _list_of_topics() -> str:
    titles = topics()
    width = max(map(len, titles))
    lines = [f"  {name:<{width}}  {title}" for name, title in titles.items()]
    return "\n".join(["mpitrain help TOPIC shows one of these topics:", "", *lines, ""])


def _text_of(name: str, commands: tuple[str, ...]) -> str:
    """Return a topic's Markdown. Raises UserError for an unknown topic, with the most similar names."""
    names = tuple(topics())
    if name in names:
        return (TOPICS / f"{name}.md").read_text(encoding="utf-8")
    started = [other for other in names if other.startswith(name)]
    near = started or difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    advice = [f"did you mean {' or '.join(near)}?"] if near else []
    advice += [f"`mpitrain {name} --help` explains the command"] if name in commands else []
    raise UserError(f"help {one_line(name)}: no such topic; {'; '.join(advice) or '`mpitrain help` lists all topics'}")


def _show(text: str) -> None:
    """Print Markdown: rendered in a terminal, as plain text otherwise."""
    if not sys.stdout.isatty():
        sys.stdout.write(text)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    console.print(Markdown(text), width=min(console.width, _PAGE_WIDTH))
