"""A process for each rank: it keeps the time, reports which rank did not arrive, and ends its rank.

`python -m mpitrain.doctor.supervision.supervisor ORDER` reads one JSON message a line from its rank; it never uses
MPI.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

from mpitrain.comm.supervision.end_signal import END_SIGNAL
from mpitrain.comm.supervision.status_folder import PRINTED, REPORTER, TROUBLE, StatusFolder
from mpitrain.doctor.check_result import CheckResult, render
from mpitrain.doctor.comparisons import compare_notes
from mpitrain.doctor.supervision.arrival import Waiting, explain

_POLL_S = 0.1
_ROOT_REPORTS_WITHIN_S = 2.0
_REPORT_LIMIT_S = 10.0


class Supervisor:
    """Watches one rank until it leaves, ends, or overstays."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order
        self._status = StatusFolder(Path(order["folder"]), order["rank"])
        self._note: dict[str, Any] = {"step": 0, "title": "start", "limit_s": 60.0}
        self._results: list[CheckResult] = []
        self._is_leaving = False
        self._deadline_s = time.monotonic() + 60.0
        self._buffer = b""

    def watch(self) -> None:
        """Read messages until the rank has gone; act on trouble."""
        while True:
            if select.select([0], [], [], _POLL_S)[0] and not self._read():
                if not self._is_leaving:
                    self._report_own_end()
                return
            if time.monotonic() > self._deadline_s or self._status.has(TROUBLE) or self._is_over():
                self._end_all()
                return

    def _is_over(self) -> bool:
        """Tell whether the others have reported, and removed the status folder, while this rank still works."""
        if self._is_leaving or self._status.folder.exists():
            return False
        # A leaving rank says so before the status folder is removed: that word may still be on its way.
        if select.select([0], [], [], 0)[0]:
            self._read()
        return not self._is_leaving

    def _read(self) -> bool:
        chunk = os.read(0, 1 << 16)
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        for line in lines:
            self._take(json.loads(line))
        return bool(chunk)

    def _take(self, message: dict[str, Any]) -> None:
        if "step" in message:
            self._note = message
            self._deadline_s = time.monotonic() + message["limit_s"]
        if "results" in message:
            self._results = [CheckResult(**record) for record in message["results"]]
        self._is_leaving |= message.get("leaving", False)

    def _report_own_end(self) -> None:
        # A rank that ended by itself, while others may wait for it: with no launcher nobody else would tell them.
        if self._order["world_size"] > 1 and not self._status.has(PRINTED):
            note = self._status.read().get(self._status.rank, {})
            self._status.post(**{**note, "ended": True})
            self._status.claim(TROUBLE)
            self._report_once()

    def _end_all(self) -> None:
        self._status.claim(TROUBLE)
        self._report_once()
        self._end_rank()

    def _report_once(self) -> None:
        # Rank 0's supervisor knows the results so far; another one reports only when that one does not.
        is_late = self._status.rank != 0 and self._status.wait_for(REPORTER, _ROOT_REPORTS_WITHIN_S)
        if not is_late and self._status.claim(REPORTER):
            sys.stdout.write(self._report())
            sys.stdout.flush()
            self._status.claim(PRINTED)
            # The launcher ends everything when the first rank ends: it must have passed our lines on by then. The
            # other supervisors wait for the status folder's removal.
            time.sleep(0.5)
            self._status.remove()
        elif self._status.wait_for(PRINTED, _REPORT_LIMIT_S):
            self._status.wait_for_removal(_ROOT_REPORTS_WITHIN_S)

    def _report(self) -> str:
        order = self._order
        waiting = Waiting(order["rank"], order["world_size"], order["is_one_node"], **self._note)
        notes = self._status.read()
        found = [explain(waiting, notes, self._status.folder), *compare_notes(notes)]
        return render([*self._results, *found], order["world_size"], order["as_json"])

    def _end_rank(self) -> None:
        for number, wait_s in ((END_SIGNAL, 1.0), (signal.SIGKILL, 0.0)):
            try:
                os.kill(self._order["pid"], number)
            except ProcessLookupError:
                return
            # Its end closes our standard input.
            deadline_s = time.monotonic() + wait_s
            while time.monotonic() < deadline_s and select.select([0], [], [], wait_s)[0]:
                if not os.read(0, 1 << 16):
                    return


def main() -> None:
    """Watch the rank that the command line names."""
    # A terminal's interrupt and a launcher's first signal go to all processes: only the rank's end ends its supervisor.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Supervisor(json.loads(sys.argv[1])).watch()


if __name__ == "__main__":
    main()
