"""Which tests run which lines of the package, and how long each takes: what mutants.py chooses its tests by.

    python -m pytest -p covering ...       with COVERING=FILE in the environment; needs the package `coverage`

A test that starts programs is followed in process alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "mpitrain"


class Recorder:
    """While pytest runs: the lines of the package by test, and the seconds of each test, for one file."""

    def __init__(self, path: Path) -> None:
        from coverage import Coverage

        self.path, self.seconds = path, dict[str, float]()
        self.coverage = Coverage(data_file=None, config_file=False, source=[str(PACKAGE)])
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(item.nodeid)
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        data = self.coverage.get_data()
        lines = {
            str(Path(name).relative_to(PACKAGE.parent)): data.contexts_by_lineno(name) for name in data.measured_files()
        }
        self.path.write_text(json.dumps({"lines": lines, "seconds": self.seconds}))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder(Path(os.environ["COVERING"])))
