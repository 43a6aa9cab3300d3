"""What each tracker is built with, without its library's files or servers."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mpitrain.config.output import TrackingSection
from mpitrain.observe.trackers.built_in import MLflow, TensorBoard, WeightsAndBiases
from mpitrain.observe.trackers.code import _Tracker
from mpitrain.observe.trackers.tracked_run import TrackedRun


def run_in(folder: Path) -> TrackedRun:
    return TrackedRun(folder, "run", TrackingSection(), {"training": {"epochs": 3}}, 7)


def test_a_tracker_of_the_user_is_told_what_it_has_methods_for() -> None:
    told: list[Any] = []
    methods = {name: lambda *given, name=name: told.append((name, *given)) for name in ("log", "finish", "close")}
    tracker: Any = _Tracker(SimpleNamespace(**methods))
    tracker.log(1, {"a": 0.5})
    tracker.finish(2, {"b": "x"})
    tracker.close("done")
    tracker.abandon()  # for which it has no method
    assert told == [("log", 1, {"a": 0.5}), ("finish", 2, {"b": "x"}), ("close", "done")]


def test_mlflow_is_told_to_report_nothing_before_it_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("MLFLOW_DISABLE_TELEMETRY", "MLFLOW_ALLOW_FILE_STORE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    with contextlib.suppress(ImportError):
        MLflow().build(run_in(tmp_path))
    assert (os.environ["MLFLOW_DISABLE_TELEMETRY"], os.environ["MLFLOW_ALLOW_FILE_STORE"]) == ("true", "true")


def test_tensorboard_s_files_are_in_a_folder_of_the_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    tracker = TensorBoard().build(run_in(tmp_path))()
    tracker.log(8, {"loss": 0.5})
    tracker.close("done")  # type: ignore[arg-type]
    (file,) = (tmp_path / "tensorboard").iterdir()
    content = file.read_bytes()
    assert b"training.epochs" in content
    assert b"loss" in content


SWITCHED = {"training": {"shuffle": True, "use_amp": False}}


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    """Let `import name` find these members until the test ends, and our module for the library be loaded anew."""
    module = ModuleType(name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)
    loaded_anew = f"mpitrain.observe.trackers.{name.partition('.')[0]}_run"
    monkeypatch.setitem(sys.modules, loaded_anew, ModuleType(loaded_anew))
    monkeypatch.delitem(sys.modules, loaded_anew)


def test_a_switch_is_true_or_false_to_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[str, str]] = []

    class MlflowClient:
        def __init__(self, **_: Any) -> None:
            run = SimpleNamespace(info=SimpleNamespace(run_id="1"), data=SimpleNamespace(params={}))
            self.get_run = self.create_run = lambda *_, **__: run
            self.get_experiment_by_name = lambda _: SimpleNamespace(experiment_id="0")
            self.log_batch = lambda _, params: logged.extend(params)

    stand_in(monkeypatch, "mlflow")
    stand_in(monkeypatch, "mlflow.entities", Metric=None, Param=lambda key, value: (key, value))
    stand_in(monkeypatch, "mlflow.tracking", MlflowClient=MlflowClient)
    MLflow().build(TrackedRun(tmp_path, "run", TrackingSection(), SWITCHED, 0))()
    assert logged == [("training.shuffle", "True"), ("training.use_amp", "False")]


def test_a_switch_is_true_or_false_to_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    stand_in(monkeypatch, "wandb", init=lambda **options: given.update(options), Settings=dict)
    WeightsAndBiases().build(TrackedRun(tmp_path, "run", TrackingSection(), SWITCHED, 0))()
    assert repr(given["config"]) == repr(SWITCHED)  # 1 equals true


def test_a_switch_is_true_or_false_to_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    tracker = TensorBoard().build(TrackedRun(tmp_path, "run", TrackingSection(), SWITCHED, 0))()
    tracker.close("finished")
    (file,) = (tmp_path / "tensorboard").iterdir()
    assert b'"training.shuffle": true,\n     "training.use_amp": false' in file.read_bytes()


def test_a_switch_is_true_or_false_to_a_tracker_of_the_user(tmp_path: Path) -> None:
    settings = TrackedRun(tmp_path, "run", TrackingSection(), SWITCHED, 0).flat_settings
    assert repr(settings) == "{'training.shuffle': True, 'training.use_amp': False}"


def log_for_ever(tracker: Any) -> None:
    for step in itertools.count():
        tracker.log(step, {"loss": 0.5})


def test_files_that_tensorboard_cannot_write_are_told_by_an_exception_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    printed: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", printed.append)
    tracker = TensorBoard().build(run_in(tmp_path))()
    tracker.log(0, {"loss": 0.5})  # what its thread had to write is there
    shutil.rmtree(tmp_path / "tensorboard")
    threads = threading.enumerate()
    with pytest.raises(OSError, match="tensorboard"):
        log_for_ever(tracker)
    for thread in threads:
        if type(thread).__module__.startswith("tensorboard"):
            thread.join()
    assert printed == []
    other = threading.Thread(target=lambda: 1 / 0)
    other.start()
    other.join()
    assert [one.exc_type for one in printed] == [ZeroDivisionError]
