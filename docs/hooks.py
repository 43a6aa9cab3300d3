"""Pages of the site, made while MkDocs builds it, so that every text stands in one place only.

README.md is the first page, `mpitrain/help/*.md` are the topics. `jobs/notebook.py` is the tutorial: its cells are run,
and the page shows their output and figures. The reference is made of the docstrings of `import mpitrain`, of the output
of `mpitrain config explain`, and of the help of each command.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import html
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

PROJECT = Path(__file__).parents[1]
PICTURES = "docs/pages/"
TOPIC = re.compile(r"`mpitrain help ([a-z-]+)`")
WIDTH = "88"


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made here."""
    sys.path.insert(0, str(PROJECT))
    for path, content in {**_front_page(), **_topics(), **_reference(), **_tutorial()}.items():
        files.append(File.generated(config, path, content=content))
    return files


def _front_page() -> dict[str, str]:
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    return {"index.md": _with_links(text.replace(PICTURES, ""), "topics/")}


def _topics() -> dict[str, str]:
    pages = sorted((PROJECT / "mpitrain" / "help").glob("*.md"))
    return {f"topics/{page.name}": _with_links(page.read_text(encoding="utf-8"), "") for page in pages}


def _with_links(text: str, folder: str) -> str:
    """Make each mention of a topic outside of code blocks a link to its page."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else TOPIC.sub(rf"[\g<0>]({folder}\1.md)", part) for part in parts)


def _reference() -> dict[str, str]:
    return {
        "reference/python.md": _python_reference(),
        "reference/settings.md": _settings_reference(),
        "reference/commands.md": _commands_reference(),
    }


def _python_reference() -> str:
    """Return one entry of mkdocstrings a public name of the package."""
    import mpitrain

    public = {name: getattr(mpitrain, name) for name in mpitrain.__all__ if not name.startswith("__")}
    entries = [
        f'::: {one.__module__}.{one.__qualname__}\n    options:\n      heading: "mpitrain.{name}"\n'
        for name, one in sorted(public.items(), key=lambda item: (isinstance(item[1], type), item[0] != "train"))
    ]
    intro = "The functions and classes of `import mpitrain`. `mpitrain help python` describes their use.\n"
    return "\n".join(["# Python\n", _with_links(intro, "../topics/"), *entries])


def _settings_reference() -> str:
    """Return what `mpitrain config explain` prints, as Markdown: a heading for each section and each key."""
    from mpitrain.config.advice.explain import explain_settings

    intro = (
        "Settings are keys of a YAML file, or `key.path=value` on the command line. "
        "`mpitrain config explain KEY` prints these texts.\n"
    )
    lines = ["# Settings\n", intro]
    for paragraph in explain_settings([]).split("\n\n"):
        key, *texts = paragraph.strip("\n").split("\n")
        name, _, is_section = key.partition("   ")
        lines += [f"{'##' if is_section or '.' not in name else '###'} `{name}` {{#{name}}}\n"]
        joined = re.sub(r"\n +", " ", "\n".join(texts).replace("\n  Allowed:", "\n\n**Allowed**:"))
        for label in ("Of", "Also read from"):
            joined = joined.replace(f" {label}: ", f"\n\n**{label}**: ")
        lines += [f"{html.escape(joined.strip(), quote=False)}\n"]
    return "\n".join(lines)


def _commands_reference() -> str:
    """Return the help of each command and of its actions."""
    from mpitrain.cli.main import add_commands

    os.environ["COLUMNS"] = WIDTH
    parser = argparse.ArgumentParser(prog="mpitrain")
    add_commands(parser.add_subparsers(), ())
    blocks = [
        f"{'#' * (one.prog.count(' ') + 1)} `{one.prog}`\n\n```text\n{one.format_help().strip()}\n```\n"
        for one in _parsers_below(parser)
    ]
    return "\n".join(["# Commands\n", *blocks])


def _parsers_below(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield below
                yield from _parsers_below(below)


def _tutorial() -> dict[str, str | bytes]:
    """Run the cells of the notebook in a temporary folder and return its page and its figures."""
    source = (PROJECT / "jobs" / "notebook.py").read_text(encoding="utf-8")
    first, *cells = source.split("# %% ")
    names: dict[str, Any] = {}
    lines = ["# Tutorial\n", f"{ast.get_docstring(ast.parse(first))}\n"]
    pages: dict[str, str | bytes] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.environ["MPLBACKEND"] = "agg"
        for cell in cells:
            title, _, code = cell.partition("\n")
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, title, "exec"), names)  # noqa: S102  # our own example
            lines += [f"## {title}\n", f"```python\n{code.strip()}\n```\n"]
            lines += [f"```text\n{printed.getvalue().strip()}\n```\n"] if printed.getvalue().strip() else []
            for figure in re.findall(r'savefig\("([^"]+)"', code):
                pages[figure] = Path(figure).read_bytes()
                lines += [f"![{title}]({figure})\n"]
    return {**pages, "tutorial.md": "\n".join(lines)}
