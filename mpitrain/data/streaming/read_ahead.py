"""Reading of chunks in threads during the computation, with a limited number of chunks ahead."""

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
    """Threads that call `read(source, chunk index)`; each thread has its own file handles, opened at its first read.

    A lock serialises the calls of the file libraries: a second thread helps if decoding and selecting take longer than
    reading.
    """

    def __init__(self, source: SampleSource, read: Callable[[SampleSource, int], Result], num_threads: int = 1) -> None:
        self._source, self._read = source, read
        self._pool = ThreadPoolExecutor(max(1, num_threads), thread_name_prefix="read-ahead")
        self._own = threading.local()
        self._opened: list[SampleSource] = []

    def in_order(self, chunks: Iterable[int], ahead: int) -> Generator[Result, None, None]:
        """Yield the result of `read` for each chunk (see the function `in_order`)."""
        return in_order(self._pool, self._run, chunks, ahead)

    def close(self) -> None:
        """Stop reading, after the current reads have ended, and close the files."""
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
    """Yield `call(number)` for each number, in order, with up to `ahead` further calls running in the pool.

    An exception in a thread is raised here when the result of its number is due.
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
