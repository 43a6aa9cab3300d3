from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from mpitrain.observe.logs import close_rank_log, open_rank_log


def test_record_names_time_level_and_origin(tmp_path: Path) -> None:
    logger = open_rank_log(tmp_path, rank=3, host="node%7")
    logger.info("read %d samples", 5)
    close_rank_log(logger)
    close_rank_log(logger)
    text = (tmp_path / "logs" / "rank-0003.log").read_text()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00 INFO 3@node%7 read 5 samples\n", text)


def test_level_filters_and_a_quiet_rank_creates_no_file(tmp_path: Path) -> None:
    logger = open_rank_log(tmp_path, rank=0, host="a", level=logging.WARNING)
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
