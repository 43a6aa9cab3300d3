from __future__ import annotations

import logging
import re
import warnings
from pathlib import Path

import pytest
from conftest import train

from mpitrain.observe.logs import (
    close_rank_log,
    closing_log,
    log_into,
    open_rank_log,
    start_rank_log,
    warnings_into,
)


def test_record_names_time_level_and_origin(tmp_path: Path) -> None:
    logger = open_rank_log(tmp_path, rank=3, host="node%7")
    logger.info("read %d samples", 5)
    close_rank_log(logger)
    close_rank_log(logger)
    text = (tmp_path / "logs" / "rank-0003.log").read_text()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00 INFO 3@node%7 read 5 samples\n", text)


def test_level_filters_and_a_quiet_rank_creates_no_file(tmp_path: Path) -> None:
    logger = open_rank_log(tmp_path, rank=0, host="a")
    logger.setLevel(logging.WARNING)
    logger.info("quiet")
    assert not (tmp_path / "logs").exists()
    logger.warning("heard")
    close_rank_log(logger)
    assert (tmp_path / "logs" / "rank-0000.log").read_text().endswith("WARNING 0@a heard\n")


def test_root_logger_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    handlers = list(logging.getLogger().handlers)
    logger = open_rank_log(tmp_path, rank=0, host="a")
    logger.error("mine")
    close_rank_log(logger)
    assert logging.getLogger().handlers == handlers
    assert caplog.records == []


def test_two_ranks_of_one_process_do_not_mix(tmp_path: Path) -> None:
    loggers = [open_rank_log(tmp_path, rank, "a") for rank in range(2)]
    for rank, logger in enumerate(loggers):
        logger.info("I am %d", rank)
        close_rank_log(logger)
    assert (tmp_path / "logs" / "rank-0001.log").read_text().count("\n") == 1


def test_unwritable_folder_ends_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "logs").write_text("a file in the way")
    logger = open_rank_log(tmp_path, rank=0, host="a")
    logger.error("lost")
    close_rank_log(logger)
    assert capsys.readouterr().err == ""


def test_what_is_logged_before_the_folder_is_known_is_kept(tmp_path: Path) -> None:
    logger = start_rank_log(rank=1, level=logging.DEBUG)
    logger.debug("early")
    assert not (tmp_path / "logs").exists()
    log_into(logger, tmp_path, 1, "a")
    logger.error("late")
    with closing_log(logger):
        pass
    lines = (tmp_path / "logs" / "rank-0001.log").read_text().splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["DEBUG 1@a early", "ERROR 1@a late"]


def test_warnings_of_libraries_go_into_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logger = open_rank_log(tmp_path, rank=0, host="a")
    with warnings.catch_warnings(), warnings_into(logger) as texts:
        warnings.simplefilter("always")
        warnings.warn("old\nthing", DeprecationWarning, stacklevel=1)
    close_rank_log(logger)
    assert texts == ["DeprecationWarning: old\nthing"]
    assert re.search(r"WARNING 0@a .*\.py:\d+: DeprecationWarning: old thing\n", log_of(tmp_path))
    assert capsys.readouterr().err == ""


def log_of(folder: Path, rank: int = 0) -> str:
    return (folder / "logs" / f"rank-{rank:04d}.log").read_text()


@pytest.mark.lab
@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_each_level_holds_what_it_says(tmp_path: Path, small_history: Path, level: str) -> None:
    run = tmp_path / "run"
    done = train(
        2, run, f"data.data_path={small_history}", "training.epochs=1", "data.num_workers=3", "training.max_steps=3",
        f"--log-level={level.upper()}",
    )  # fmt: skip
    assert done.returncode == 5, done.stderr
    texts = [log_of(run, rank) if (run / "logs" / f"rank-{rank:04d}.log").exists() else "" for rank in range(2)]
    found = {kind for kind in ("DEBUG", "INFO", "WARNING", "ERROR") if f" {kind} 0@" in texts[0]}
    assert found == {"debug": {"DEBUG", "INFO", "WARNING"}, "info": {"INFO", "WARNING"}, "warning": {"WARNING"}}.get(
        level, set()
    )
    if level != "error":
        assert "WARNING 0@" in texts[0]
        assert "data.num_workers=3: has no effect" in texts[0]
        assert all("stopped by training.max_steps=3" in text for text in texts)
    # What the root prints is in its log.
    assert ("INFO 0@" in texts[0] and "mpitrain: 2 ranks, backend mpi" in texts[0]) == (level in ("debug", "info"))
    if level == "debug":
        assert ["part: microbatches 0 to 3 of 8" in text for text in texts] == [True, False]
        assert ["part: microbatches 4 to 7 of 8" in text for text in texts] == [False, True]
        for words in (
            "engine: compiled",
            "dense_network-",
            "batches: ",
            "targets aice_h",
            "launcher: MPI",
            "mpi_library: ",
            "cpu: ",
            "versions: Python",
            "start: ",
            "steps in a call",
        ):
            assert all(words in text for text in texts), words


def test_a_disk_that_is_full_when_the_log_is_closed_ends_nothing(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank-0000.log").symlink_to("/dev/full")
    logger = open_rank_log(tmp_path, 0, "here")
    stream = logger.handlers[0]
    logger.info("lost")
    stream.stream.write("held back until the file is closed")  # type: ignore[attr-defined]
    close_rank_log(logger)
    assert logger.handlers == []
    with closing_log(open_rank_log(tmp_path, 0, "here")) as _:
        pass
