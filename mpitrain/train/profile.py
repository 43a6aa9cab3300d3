"""A profile of some training steps, as a trace that a browser shows (chrome://tracing, ui.perfetto.dev)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, schedule

_WAIT_STEPS, _WARM_UP_STEPS, _PROFILED_STEPS = 5, 2, 10


@contextmanager
def profiled_steps(target: Path | None) -> Iterator[Callable[[], None]]:
    """Yield what to call after each step; `target` then receives the trace of ten early steps. None: no profile."""
    if target is None:
        yield lambda: None
        return
    plan = schedule(wait=_WAIT_STEPS, warmup=_WARM_UP_STEPS, active=_PROFILED_STEPS, repeat=1)
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(
        activities=activities, schedule=plan, on_trace_ready=lambda it: it.export_chrome_trace(str(target))
    ) as it:
        yield it.step
