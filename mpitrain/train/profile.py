"""The profile of some early steps, recorded by torch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_WAIT_STEPS, _WARM_UP_STEPS, _PROFILED_STEPS = 5, 2, 10
PROFILED_AFTER = _WAIT_STEPS + _WARM_UP_STEPS + _PROFILED_STEPS


@contextmanager
def profiled_steps(target: Path | None) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each step; the trace of ten early steps is written to `target`, if given."""
    if target is None:
        yield lambda: None
        return
    target.unlink(missing_ok=True)  # the profile of a run that is resumed
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    plan = schedule(wait=_WAIT_STEPS, warmup=_WARM_UP_STEPS, active=_PROFILED_STEPS, repeat=1)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]

    def export(recorded: Any) -> None:
        if recorded.step_num >= PROFILED_AFTER:  # otherwise the run ended before
            recorded.export_chrome_trace(str(target))

    with profile(activities=activities, schedule=plan, on_trace_ready=export) as profiler:
        yield profiler.step
