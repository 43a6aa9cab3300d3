"""Trackers: what each wrote is read back by its own library, without any network; one that fails changes nothing."""

from __future__ import annotations

import json
import re
import shutil
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import TIMEOUT_S, losses_of, train

from mpitrain.config import load_run_config
from mpitrain.ensemble.beginning import EnsembleRequest, load_settings
from mpitrain.errors import MissingDependencyError
from mpitrain.observe.trackers.open_trackers import check_trackers, where_to_look
from mpitrain.observe.trackers.tracker import BackgroundTracker, Outcome, Tracker, flat, numbers_of

ALL = ("--tensorboard", "--mlflow", "--wandb")
OF_WANDB = ("--wandb-project", "ice", "--wandb-entity", "polar", "--wandb-name", "first", "--wandb-tags", "a, b")
QUIET = {"PYTHONWARNINGS": "default"}  # other libraries' warnings are theirs


def result_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run_record.json").read_text())["result"]


@pytest.fixture(scope="module")
def settings(small_history: Path) -> tuple[str, ...]:
    return (f"data.data_path={small_history}", "training.virtual_ranks=2")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, settings: tuple[str, ...]) -> dict[str, Any]:
    """What the run comes to without a tracker."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    assert train(None, folder, "training.epochs=2", *settings).returncode == 0
    return result_of(folder)


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory, settings: tuple[str, ...]) -> Path:
    """A run with all trackers: an epoch on two ranks, resumed for another one under the eyes of strace."""
    folder, trace = tmp_path_factory.mktemp("tracked") / "run", tmp_path_factory.mktemp("trace") / "connections"
    first = train(2, folder, "training.epochs=1", *settings, *ALL, *OF_WANDB, environ=QUIET)
    assert (first.returncode, "no longer used" in first.stderr) == (0, False), first.stderr
    strace = shutil.which("strace")
    follow = (strace, "-f", "-qq", "--seccomp-bpf", "-e", "trace=connect,sendto", "-o", str(trace)) if strace else ()
    again = train(None, folder, "training.epochs=2", "--resume", environ=QUIET, emulator=follow)
    assert (again.returncode, "no longer used" in again.stderr) == (0, False), again.stderr
    return folder


@pytest.mark.lab
def test_trackers_change_no_bit(tracked: Path, plain: dict[str, Any]) -> None:
    assert result_of(tracked) == plain


@pytest.mark.lab
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace: apt-get install strace")
def test_no_tracker_asks_the_network(tracked: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (trace,) = tmp_path_factory.getbasetemp().glob("trace0/connections")
    lines = trace.read_text().splitlines()
    assert any("AF_UNIX" in line for line in lines)  # strace sees the library's process: it talks to it by this
    addresses = re.findall(r'(?:inet_addr|inet_pton\(AF_INET6,)\(?\s*"([^"]+)"', "\n".join(lines))
    assert [address for address in addresses if address not in ("127.0.0.1", "::1")] == []


@pytest.mark.lab
def test_tensorboard_reads_its_files(tracked: Path, plain: dict[str, Any]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tracked / "tracking" / "tensorboard"))
    events.Reload()
    scalars = {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}
    records = [json.loads(line) for line in (tracked / "metrics.jsonl").read_text().splitlines()]
    assert scalars["validation_loss"] == [
        (record["step"], pytest.approx(record["validation_loss"])) for record in records
    ]
    assert [step for step, _ in scalars["timing/shares/waiting"]] == [record["step"] for record in records]
    assert scalars["final/best_epoch"][-1] == (plain["steps"], plain["best_epoch"])
    (text,) = events.Tensors("final/text_summary")[-1].tensor_proto.string_val
    assert plain["weights_sha256"] in text.decode()
    assert '"training.epochs": 2' in events.Tensors("settings/text_summary")[-1].tensor_proto.string_val[0].decode()


@pytest.mark.lab
def test_mlflow_reads_its_store(tracked: Path, plain: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(tracked / "tracking" / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("mpitrain")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])  # the resumed run is the same one
    history = client.get_metric_history(run.info.run_id, "validation_loss")
    assert [metric.value for metric in history] == [loss for _, loss in losses_of(tracked)]
    assert (run.info.status, run.info.run_name, run.data.params["training.epochs"]) == ("FINISHED", "run", "1")
    assert (run.data.tags["resumed/training.epochs"], run.data.tags["final/weights_sha256"]) == (
        "2", plain["weights_sha256"],
    )  # fmt: skip
    assert run.data.metrics["final/best_epoch"] == plain["best_epoch"]


def wandb_records(path: Path) -> Iterator[Any]:
    """The records of a file that W&B wrote, as its own messages: its frame is LevelDB's log after a head of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, position, parts = path.read_bytes(), 7, b""
    assert content[:4] == b":W&B"
    while position + 7 <= len(content):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
        checksum, length, kind = struct.unpack("<IHB", content[position : position + 7])
        data = content[position + 7 : position + 7 + length]
        assert checksum == zlib.crc32(bytes([kind]) + data)
        position, parts = position + 7 + length, parts + data
        if kind in (1, 4):  # a whole record, or its last part
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def items_of(message: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in message}


@pytest.mark.lab
def test_wandb_reads_its_files(tracked: Path, plain: dict[str, Any]) -> None:
    files = sorted((tracked / "tracking" / "wandb").glob("offline-run-*/*.wandb"))
    read = [list(wandb_records(file)) for file in files]
    runs = [record.run for records in read for record in records if record.HasField("run")]
    assert {(run.project, run.entity, run.display_name, tuple(run.tags)) for run in runs} == {
        ("ice", "polar", "first", ("a", "b"))
    }
    assert (len(files), len({run.run_id for run in runs})) == (2, 1)  # a resumed run is one run, once it is sent
    assert items_of(runs[0].config.update)["training"]["epochs"] == 1
    history = [items_of(record.history.item) for records in read for record in records if record.HasField("history")]
    assert [line["validation_loss"] for line in history] == [loss for _, loss in losses_of(tracked)]
    summary: dict[str, Any] = {}
    for record in read[-1]:
        summary |= items_of(record.summary.update) if record.HasField("summary") else {}
    assert (summary["final/weights_sha256"], summary["final/best_epoch"]) == (
        plain["weights_sha256"], plain["best_epoch"],
    )  # fmt: skip
    assert [record.exit.exit_code for records in read for record in records if record.HasField("exit")] == [0, 0]


# Libraries that fail: MLflow's where it is opened, W&B's at the second epoch, TensorBoard's when it is closed.
FAILING = {
    "mlflow/__init__.py": "",
    "mlflow/entities.py": "Metric = Param = None",
    "mlflow/tracking.py": "class MlflowClient:\n    def __init__(self, **_): raise PermissionError('no folder\\nhere')",
    "tensorboard/__init__.py": "",
    "sitecustomize.py": """
import sys, types
class SummaryWriter:
    def __init__(self, *_, **__): pass
    def add_text(self, *_): pass
    add_scalar = flush = add_text
    def close(self): raise SystemExit('no space')
sys.modules['torch.utils.tensorboard'] = types.ModuleType('torch.utils.tensorboard')
sys.modules['torch.utils.tensorboard'].SummaryWriter = SummaryWriter
""",
    "wandb.py": """
class Run:
    calls = 0
    def log(self, values, step):
        self.calls += 1
        if self.calls == 2: raise ConnectionError('gone away')
Settings, init = dict, lambda **_: Run()
""",
}


@pytest.mark.lab
def test_trackers_that_raise_leave_the_run_as_it_is(
    tmp_path: Path, settings: tuple[str, ...], plain: dict[str, Any]
) -> None:
    for name, text in FAILING.items():
        (tmp_path / "failing" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "failing" / name).write_text(text)
    path = {"PYTHONPATH": f"{tmp_path / 'failing'}:{Path(__file__).parents[2]}"}
    done = train(None, tmp_path / "run", "training.epochs=2", *settings, *ALL, environ=path)
    assert done.returncode == 0, done.stderr
    assert result_of(tmp_path / "run") == plain
    lines = [line for line in done.stderr.splitlines() if "tracking." in line]
    why = {
        "tensorboard": "SystemExit: no space",
        "wandb": "ConnectionError: gone away",
        "mlflow": "PermissionError: no folder here",
    }
    assert sorted(lines) == sorted(
        f"note: tracking.{name}: failed and is no longer used ({one}); the run continues" for name, one in why.items()
    )


class Played:
    """A tracker that does at its first record what it is given."""

    def __init__(self, at_first: Callable[[], None]) -> None:
        self.at_first, self.calls = at_first, list[str]()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.calls.append("log")
        self.at_first()

    def finish(self, step: int, values: Mapping[str, float | str]) -> None:
        self.calls.append("finish")

    def close(self, outcome: Outcome) -> None:
        self.calls.append(outcome)

    def abandon(self) -> None:
        self.calls.append("abandon")
        raise RuntimeError("not heard")


def lines_of(make: Callable[[], Tracker], limit_s: float = TIMEOUT_S) -> list[str]:
    lines: list[str] = []
    tracker = BackgroundTracker("wandb", lambda: make, lines.append)
    tracker.wait_until_open(time.monotonic() + limit_s)
    for step in range(4):
        tracker.log(step, {})
    tracker.finish(4, {})
    tracker.close("finished", time.monotonic() + limit_s)
    return lines


@pytest.mark.lab
def test_a_tracker_that_hangs_is_waited_for_no_longer_than_asked() -> None:
    inner = Played(lambda: time.sleep(3600))
    expected = "tracking.wandb: failed and is no longer used (it did not finish in time)"
    assert lines_of(lambda: inner, 0.2) == [f"{expected}; the run continues"]
    assert inner.calls == ["log"]
    assert lines_of(lambda: Played(time.sleep(3600) or print), 0.2) == [f"{expected}; the run continues"]  # type: ignore[func-returns-value]


def test_a_tracker_that_cannot_be_opened_says_so_before_the_training() -> None:
    def refuse() -> Any:
        raise PermissionError("no folder")

    for load in (refuse, lambda: refuse):
        lines: list[str] = []
        BackgroundTracker("mlflow", load, lines.append).wait_until_open(time.monotonic() + TIMEOUT_S)
        (line,) = lines
        assert "no longer used (PermissionError: no folder); the run continues" in line


def test_a_tracker_that_failed_is_let_go_and_not_asked_again() -> None:
    inner = Played(lambda: 1 // 0)  # type: ignore[arg-type,return-value]
    (line,) = lines_of(lambda: inner)
    assert "(ZeroDivisionError: integer division or modulo by zero)" in line
    assert inner.calls == ["log", "abandon"]


def test_numbers_and_settings_are_flat() -> None:
    record: dict[str, Any] = {
        "loss": 1,
        "text": "a",
        "none": None,
        "best": True,
        "ranks": [1.0],
        "timing": {"shares": {"x": 0.5}},
    }
    assert numbers_of(record) == {"loss": 1.0, "timing/shares/x": 0.5}
    assert dict(flat(load_run_config(None).config.model_dump(), "."))["training.optimizer.type"] == "adam"


def test_a_tracker_that_is_not_installed_is_named_before_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'mpitrain\[mlflow\]'"):
        check_trackers(load_run_config(None, ["tracking.mlflow=true"]).config.tracking)
    check_trackers(load_run_config(None).config.tracking)


def test_all_are_off_and_offline_unless_asked_for() -> None:
    tracking = load_run_config(None).config.tracking
    assert (tracking.is_on, tracking.wandb_mode, list(where_to_look(tracking, Path("run")))) == (False, "offline", [])


def test_tags_are_a_list_or_text() -> None:
    for given in ("[a, b]", "'a, b'"):
        assert load_run_config(None, [f"tracking.wandb_tags={given}"]).config.tracking.tags == ["a", "b"]


@pytest.mark.parametrize(
    "text",
    [
        "use_wandb: true\nwandb_project: ice\nwandb_run_name: first",
        "logging: {use_wandb: true, wandb_project: ice, wandb_name: first}",
        "wandb: {enabled: true, project: ice, name: first}",
        "training: {wandb: true, wandb_project: ice, wandb_run_name: first}",
        "tracking: {wandb: true, wandb_project: ice, wandb_name: first}",
    ],
)
def test_files_of_other_trainers_are_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.yaml").write_text(text)
    tracking = load_run_config(tmp_path / "run.yaml").config.tracking
    assert (tracking.wandb, tracking.wandb_project, tracking.wandb_name) == (True, "ice", "first")


def test_settings_of_a_tracker_that_is_off_are_named() -> None:
    loaded = load_run_config(None, ["tracking.wandb_project=ice", "tracking.mlflow=true", "tracking.mlflow_uri=store"])
    assert loaded.notices == ("tracking.wandb_project=ice: has no effect without tracking.wandb=true",)


def test_an_ensemble_says_that_it_is_not_tracked() -> None:
    (line,) = load_settings(EnsembleRequest(overrides=("tracking.tensorboard=true",))).notices
    assert line.startswith("tracking: has no effect on an ensemble; ")
