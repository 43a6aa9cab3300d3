"""A rank writes into the log of its host, where the launcher brings all output to one place."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import launcher_environment

from mpitrain.cluster.node_log import node_log_variable

HOST = socket.gethostname()
CODE = """
import os, sys
from mpitrain.cluster.node_log import write_into_node_log
write_into_node_log(os.environ)
print("words", "MPITRAIN_NODE_LOG" in os.environ)
print("errors", file=sys.stderr)
"""


@pytest.mark.parametrize(("hosts", "node"), [((f"{HOST}.site.org", "b"), 0), (("a", HOST), 1), (("a", "b"), 2)])
def test_output_and_errors_are_in_the_log_of_the_host(tmp_path: Path, hosts: tuple[str, ...], node: int) -> None:
    name, _, value = node_log_variable(tmp_path / "a job:1", hosts).partition("=")
    log = tmp_path / f"a job:1_node{node}.log"
    log.write_text("before\n")
    environ = {**launcher_environment(), name: value}
    done = subprocess.run([sys.executable, "-c", CODE], env=environ, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert sorted(log.read_text().splitlines()) == ["before", "errors", "words False"]
    assert os.listdir(tmp_path) == [log.name]


def test_without_the_variable_nothing_changes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=launcher_environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "words False\n"
