"""The site is built without a warning, and its pages hold what they are made of."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PROJECT, launcher_environment

import mpitrain
from mpitrain.cli.help import topics
from mpitrain.cli.main import COMMANDS


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("mkdocs", "mkdocstrings", "iris_sample_data", "xarray"):
        pytest.importorskip(name)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", "docs/mkdocs.yml", "-d", str(folder)]
    done = subprocess.run(
        command, cwd=PROJECT, env=launcher_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def text_of(site: Path, page: str) -> str:
    source = (site / page / "index.html").read_text()
    return html.unescape(re.sub(r"<[^>]+>", "", source))


def test_every_topic_and_command_has_its_page_or_section(site: Path) -> None:
    for name, title in topics().items():
        assert title in text_of(site, f"topics/{name}")
    commands = text_of(site, "reference/commands")
    for name in COMMANDS:
        assert f"usage: mpitrain {name}" in commands


def test_the_reference_has_every_public_name_and_setting(site: Path) -> None:
    python = text_of(site, "reference/python")
    for name in mpitrain.__all__:
        assert name.startswith("__") or f"mpitrain.{name}" in python
    source = (site / "reference" / "settings" / "index.html").read_text()
    for key in ("training.optimizer.learning_rate", "data.split", "model.hidden_layers"):
        assert f'id="{key}"' in source


def test_the_tutorial_shows_what_its_cells_print_and_draw(site: Path) -> None:
    tutorial = text_of(site, "tutorial")
    assert re.search(r"RMSE in K: 0\.\d+ and of last year's value", tutorial)
    source = (site / "tutorial" / "index.html").read_text()
    for figure in ("notebook_loss.png", "notebook_map.png"):
        assert figure in source
        assert (site / figure).stat().st_size > 10_000


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|img|iframe)[^>]* src="(https?:[^"]+)"|<link[^>]* href="(https?:[^"]+)"', page.read_text()
        )
        assert loaded == [], page
