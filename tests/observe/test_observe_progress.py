from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Callable

import pytest

from mpitrain.observe import open_progress as opening
from mpitrain.observe.bar import BarProgress, _columns
from mpitrain.observe.open_progress import open_progress
from mpitrain.observe.progress import LineProgress, Standing, render_duration, render_line, render_rate
from mpitrain.observe.terminal import Terminal


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("kind", "own", "launchers", "expected"),
    [
        ("auto", None, None, LineProgress),
        ("auto", "shown", None, BarProgress),
        ("auto", None, "shown", BarProgress),
        ("auto", "hidden", None, LineProgress),
        ("lines", "shown", "shown", LineProgress),
        ("bar", "hidden", None, BarProgress),
        ("bar", None, None, LineProgress),
    ],
)
def test_which_progress_is_opened(kind, own, launchers, expected, monkeypatch) -> None:
    def terminal(standing: str | None) -> Terminal | None:
        return Terminal(os.open(os.devnull, os.O_WRONLY), lambda: standing == "shown") if standing else None

    monkeypatch.setattr(opening, "open_stream_terminal", lambda stream: terminal(own))
    monkeypatch.setattr(opening, "open_launcher_terminal", lambda: terminal(launchers))
    environ = {"TERM": "xterm"}
    with open_progress(kind, total_steps=1, first_step=0, stream=io.StringIO(), environ=environ) as progress:
        assert type(progress) is expected


def test_lines_first_last_and_every_interval() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = LineProgress(stream, total_steps=10, first_step=0, interval_s=3.0, clock=clock)
    for step in range(1, 11):
        clock.now_s += 1.0
        progress.update(step, 1, 1, 0.5, None, 1e-3)
    progress.close()
    progress.close()
    lines = stream.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "step 1/10 (10 %)",
        "step 4/10 (40 %)",
        "step 7/10 (70 %)",
        "step 10/10 (100 %)",
    ]
    assert lines[1] == (
        "step 4/10 (40 %)  epoch 1/1  train loss 5.000e-01  learning rate 1.0e-03  1 steps/s  0:06 left"
    )


def test_resumed_run_counts_its_own_speed() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = LineProgress(stream, total_steps=1000, first_step=900, clock=clock)
    clock.now_s += 10.0
    progress.update(950, 1, 1, 0.5, 0.25, 1e-3)
    assert "validation loss 2.500e-01" in stream.getvalue()
    assert stream.getvalue().endswith("5 steps/s  0:10 left\n")


def test_closed_stream_ends_no_run() -> None:
    stream = io.StringIO()
    progress = LineProgress(stream, total_steps=2, first_step=0, interval_s=0.0)
    stream.close()
    with pytest.raises(ValueError, match="closed file"):
        stream.write("what the progress would meet if it did not look")
    for step in (1, 2):
        progress.update(step, 2, 1, 0.5, None, 1e-3)
    progress.close()
    progress.close()  # and again, as an error on the way out does


def test_bar_without_a_terminal_falls_back_to_lines() -> None:
    stream = io.StringIO()
    with open_progress("bar", total_steps=1, first_step=0, stream=stream, environ={"TERM": "xterm"}) as progress:
        progress.update(1, 1, 1, 0.5, None, 1e-3)
    assert "\x1b" not in stream.getvalue()
    assert stream.getvalue().startswith("step 1/1")


@pytest.mark.lab
def test_update_is_cheap_when_nothing_is_due() -> None:
    progress = LineProgress(io.StringIO(), total_steps=10, first_step=0, interval_s=1e9)
    progress.update(1, 1, 1, 0.5, None, 1e-3)

    def nothing(*_: object) -> None: ...

    def seconds_of(call: Callable[..., None]) -> float:
        start_s = time.perf_counter()
        for _ in range(2000):
            call(1, 1, 1, 0.5, None, 1e-3)
        return time.perf_counter() - start_s

    # In turn, and the best of several tries: other programs make single ones slow. 0.4 us, a bare call 0.07.
    tries = [(seconds_of(progress.update), seconds_of(nothing)) for _ in range(20)]
    ours_s, bare_s = map(min, zip(*tries, strict=True))
    assert ours_s < 20 * bare_s


@pytest.mark.parametrize("columns", [40, 80, 140])
def test_bar_fits_on_one_line(columns: int) -> None:
    rich_text = pytest.importorskip("rich.text")
    read_end, terminal = _terminal(columns)
    clock = Clock()
    with BarProgress(terminal, total_steps=60000, first_step=0, clock=clock) as progress:
        clock.now_s += 20.0
        progress.update(12345, 12, 60, 1.25e-3, 1.5e-3, 1e-3)
        progress.note("saved a checkpoint")
    drawings = _read_all(read_end).replace("\r\n", "\n").split("\r\x1b[2K")
    plain = [rich_text.Text.from_ansi(drawing.rstrip("\n")).plain for drawing in drawings]
    assert plain[0] == ""
    assert plain[2].startswith("saved a checkpoint\nepoch 12/60")
    assert drawings[-1].endswith("\n")
    assert len(plain[1]) == columns - 1
    assert "loss 1.25e-03" in plain[1]
    assert ("12345/60000" in plain[1], "617/s" in plain[1]) == ((columns > 40), (columns == 80))
    assert ("lr 1.0e-03" in plain[1]) == (columns == 140)


def test_bar_survives_its_terminal() -> None:
    read_end, terminal = _terminal(80)
    progress = BarProgress(terminal, total_steps=3, first_step=0, interval_s=0.0)
    progress.update(1, 1, 1, 0.5, None, 1e-3)
    os.close(read_end)
    progress.update(2, 1, 1, 0.5, None, 1e-3)
    progress.close()
    assert not terminal.may_write()


def test_bar_waits_in_the_background() -> None:
    read_end, terminal = _terminal(80, is_ours=False)
    with BarProgress(terminal, total_steps=3, first_step=0) as progress:
        progress.update(1, 1, 1, 0.5, None, 1e-3)
    assert _read_all(read_end) == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-:--"), (float("nan"), "-:--"), (59.6, "1:00"), (3723.0, "1:02:03"), (0.0, "0:00")]
)
def test_duration(seconds: float | None, text: str) -> None:
    assert render_duration(seconds) == text


def _read_all(read_end: int) -> str:
    content = b""
    # a terminal whose other side is closed ends with an error instead of an empty read
    with contextlib.suppress(OSError):
        while part := os.read(read_end, 4096):
            content += part
    os.close(read_end)
    return content.decode()


def _terminal(columns: int, is_ours: bool = True) -> tuple[int, Terminal]:
    import fcntl
    import struct
    import termios

    read_end, write_end = os.openpty()
    fcntl.ioctl(write_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    return read_end, Terminal(write_end, lambda: is_ours)


@pytest.mark.parametrize(("seconds", "text"), [(1e8, "27777:46:40"), (1.01e8, "-:--")])
def test_three_years_are_the_longest_time(seconds: float, text: str) -> None:
    assert render_duration(seconds) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [(None, ""), (0.012345, "0.0123"), (99.94, "99.9"), (100.4, "100"), (999.6, "1000"), (12345.0, "12345")],
)
def test_rates_have_three_digits_and_no_power_of_ten(rate: float | None, text: str) -> None:
    assert render_rate(rate) == (text and f"{text} steps/s")


@pytest.mark.parametrize(("step", "percent"), [(0, 0), (1, 0), (199, 99), (200, 100)])
def test_all_is_done_at_100_percent_and_not_before(step: int, percent: int) -> None:
    standing = Standing(step, 200, 1, 1, 0.5, None, 0.1, None, None)
    assert render_line(standing).startswith(f"step {step}/200 ({percent} %)  epoch 1/1  train loss 5.000e-01")


@pytest.mark.parametrize(("width", "num_columns"), [(59, 4), (60, 6), (119, 6), (120, 7), (199, 7), (200, 8)])
def test_a_wider_terminal_shows_more(width: int, num_columns: int) -> None:
    """Epoch, bar, loss and time left; steps and rate as well; the learning rate; details."""
    standing = Standing(1, 200, 1, 1, 0.5, None, 0.1, 2.0, 99.5, details="8 ranks")
    assert len(_columns(standing, width)) == num_columns
