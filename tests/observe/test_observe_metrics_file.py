from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpitrain.errors import OutputError, TrainingError
from mpitrain.observe.metrics_file import MetricsFile, read_metrics, wrong_key


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_floats_keep_their_bits(tmp_path_factory: pytest.TempPathFactory, value: float) -> None:
    path = tmp_path_factory.mktemp("metrics") / "metrics.jsonl"
    with MetricsFile(path) as metrics:
        metrics.append({"train_loss": value})
    (record,) = read_metrics(path)
    assert struct.pack("d", record["train_loss"]) == struct.pack("d", value)


def test_record_is_readable_while_the_file_is_open(path: Path) -> None:
    with MetricsFile(path) as metrics:
        metrics.append({"step": 1, "note": "två\n", "validation_loss": None})
        assert read_metrics(path) == [{"step": 1, "note": "två\n", "validation_loss": None}]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_is_refused_and_nothing_written(path: Path, value: float) -> None:
    with MetricsFile(path) as metrics:
        with pytest.raises(TrainingError, match=r"train_loss=-?(nan|inf) at step 7 .*learning_rate"):
            metrics.append({"step": 7, "train_loss": value})
        assert path.read_bytes() == b""


def test_cut_back_keeps_up_to_the_step_and_appends_after_it(path: Path) -> None:
    path.write_bytes(b'{"kind": "header"}\n{"step": 1}\n{"step":  2}\n{"step": 3}\n{"step": 4, "tr')
    with MetricsFile(path) as metrics:
        metrics.cut_back(2)
        assert path.read_bytes() == b'{"kind": "header"}\n{"step": 1}\n{"step":  2}\n'  # kept lines keep their bytes
        metrics.append({"step": 3})
    assert [record.get("step") for record in read_metrics(path)] == [None, 1, 2, 3]
    assert [file.name for file in path.parent.iterdir()] == ["metrics.jsonl"]


def test_cut_back_leaves_the_file_when_the_disk_refuses(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    path.write_bytes(b'{"step": 1}\n{"step": 2}\n')
    with MetricsFile(path) as metrics, monkeypatch.context() as patched:
        patched.setattr("os.fsync", refuse)
        with pytest.raises(OutputError, match="No space left"):
            metrics.cut_back(1)
    assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'
    assert len(list(path.parent.iterdir())) == 1


def test_torn_last_line_is_dropped_on_opening(path: Path) -> None:
    path.write_bytes(b'{"step": 1}\n{"step": 2')
    assert read_metrics(path) == [{"step": 1}]
    with MetricsFile(path) as metrics:
        metrics.append({"step": 3})
    assert read_metrics(path) == [{"step": 1}, {"step": 3}]


@pytest.mark.parametrize("line", [b"{", b"[1]", b'{"loss": NaN}', b"\xff"])
def test_damaged_line_is_named(path: Path, line: bytes) -> None:
    path.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 3}\n')
    with pytest.raises(OutputError, match=r"metrics\.jsonl:2: "):
        read_metrics(path)


def test_missing_file_and_missing_folder_are_told(path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be read"):
        read_metrics(path)
    with pytest.raises(OutputError, match="cannot be opened"):
        MetricsFile(path.parent / "missing" / "metrics.jsonl")


def timing_with(**columns: object) -> dict[str, object]:
    ranks = {key: [1.0, 2.0] for key in ("computing", "reading", "communicating", "waiting", "memory_mib")}
    return {"epoch": 1, "timing": {"step_s": 0.1, "samples_per_s": 10.0, "ranks": {**ranks, **columns}}}


@pytest.mark.parametrize(
    ("columns", "wrong"),
    [
        ({}, None),
        ({"waiting": [1.0]}, "timing"),
        ({"memory_mib": {"a": 1.0, "b": 2.0}}, "timing"),
        ({"reading": None}, "timing.ranks.reading.list[float]"),
    ],
)
def test_times_are_of_the_same_ranks_in_every_column(columns: dict[str, object], wrong: str | None) -> None:
    found = wrong_key(timing_with(**columns))
    assert found == wrong or (wrong is not None and found is not None and found.startswith("timing.ranks.reading"))


@pytest.mark.parametrize("value", [[1.0, math.nan], {"x": {"y": math.inf}}])
def test_non_finite_numbers_in_lists_and_mappings_are_refused_too(path: Path, value: object) -> None:
    with MetricsFile(path) as metrics, pytest.raises(TrainingError, match=r"jacobian=.* is not finite"):
        metrics.append({"step": 7, "jacobian": value})
