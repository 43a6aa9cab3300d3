"""Reading chunks in threads while the computation goes on, a bounded number ahead."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Generic, TypeVar

from mpitrain.data.selection.source import OpenFiles, SampleSource

Result = TypeVar("Result")


class ReadAhead(Generic[Result]):
    """Threads that call `read(source, chunk number)`; each has handles of its own, opened when it first reads.

    The libraries' calls take turns behind the readers' lock: a second thread helps where decoding and selecting cost
    more than reading.
    """

    def __init__(self, source: SampleSource, read: Callable[[SampleSource, int], Result], num_threads: int = 1) -> None:
        self._source, self._read = source, read
        self._pool = ThreadPoolExecutor(max(1, num_threads), thread_name_prefix="read-ahead")
        self._own = threading.local()
        self._opened: list[SampleSource] = []

    def in_order(self, chunks: Iterable[int], ahead: int) -> Generator[Result, None, None]:
        """Yield what is read of each chunk (see `in_order`)."""
        return in_order(self._pool, self._run, chunks, ahead)

    def close(self) -> None:
        """Read no more; what is being read ends first."""
        self._pool.shutdown(cancel_futures=True)
        for source in self._opened:
            source.close()

    def _run(self, chunk: int) -> Result:
        if not hasattr(self._own, "source"):
            self._own.source = replace(self._source, handles=OpenFiles())
            self._opened.append(self._own.source)
        return self._read(self._own.source, chunk)


def in_order(
    pool: ThreadPoolExecutor, call: Callable[[int], Result], numbers: Iterable[int], ahead: int
) -> Generator[Result, None, None]:
    """Yield what `call` returns for each number, in order, with up to `ahead` more being called meanwhile.

    An error of a thread is raised here, when its number's turn has come.
    """
    started: deque[Future[Result]] = deque()
    try:
        for number in numbers:
            started.append(pool.submit(call, number))
            if len(started) > ahead:
                yield started.popleft().result()
        while started:
            yield started.popleft().result()
    finally:
        for future in started:
            future.cancel()
