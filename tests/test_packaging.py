"""The files by which tools and hosts know the project agree with it, and with each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml
from conftest import PROJECT

from mpitrain.version import __version__

SETTINGS = tomllib.loads((PROJECT / "pyproject.toml").read_text())
COMMUNITY = PROJECT / ".github"


def test_the_citation_is_of_this_version_and_licence() -> None:
    found = yaml.safe_load((PROJECT / "CITATION.cff").read_text())
    assert (found["version"], found["license"]) == (__version__, SETTINGS["project"]["license"])
    assert found["title"] in (PROJECT / "mpitrain" / "help" / "cite.md").read_text()
    assert set(found["keywords"]) <= set(SETTINGS["project"]["keywords"])


def test_hosts_run_what_this_project_runs() -> None:
    (jobs,) = yaml.safe_load((COMMUNITY / "workflows" / "readme.yml").read_text())["jobs"].values()
    assert jobs["steps"][-1]["run"] == ".ci/run"
    assert jobs["strategy"]["matrix"]["python"][0] == SETTINGS["project"]["requires-python"].removeprefix(">=")
    named = set(re.findall(r":: Python :: (3\.\d+)$", "\n".join(SETTINGS["project"]["classifiers"]), re.MULTILINE))
    assert set(jobs["strategy"]["matrix"]["python"]) <= named


def test_forms_and_pages_are_whole_and_their_links_lead_somewhere() -> None:
    for form in (COMMUNITY / "ISSUE_TEMPLATE").glob("*.yml"):
        assert yaml.safe_load(form.read_text())
    for page in COMMUNITY.glob("*.md"):
        for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            assert (COMMUNITY / link).is_file(), f"{page.name}: {link}"


def test_the_site_has_a_page_for_every_topic() -> None:
    listed = re.findall(r"topics/([a-z-]+)\.md", (PROJECT / "docs" / "mkdocs.yml").read_text())
    assert sorted(listed) == sorted(path.stem for path in (PROJECT / "mpitrain" / "help").glob("*.md"))


def test_an_extra_is_asked_for_by_its_name() -> None:
    """Every `pip install '.[...]'` of the documents and messages names extras that there are."""
    texts = [PROJECT / "README.md", *(PROJECT / "mpitrain").rglob("*.md"), *(PROJECT / "mpitrain").rglob("*.py")]
    asked = {
        name
        for path in texts
        for found in re.findall(r"\.\[([a-z,]+)\]'", path.read_text())
        for name in found.split(",")
    }
    assert {"mpich", "xarray", "zarr"} <= asked <= set(SETTINGS["project"]["optional-dependencies"])


def test_nothing_else_lies_on_top() -> None:
    allowed = {
        "setup.py",
        "mpitrain",
        "cpp_reference",
        "tests",
        "jobs",
        "README.md",
        "LICENSE",
        "pyproject.toml",
        "CITATION.cff",
        "docs",
    }
    made = {"build", "mpitrain.egg-info", "mpitrain_run"}
    found = {path.name for path in Path(PROJECT).iterdir() if not path.name.startswith(".")}
    assert found - made <= allowed
