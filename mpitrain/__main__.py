"""`python -m mpitrain`."""

import atexit
import os
import sys
import threading
from typing import NoReturn

from mpitrain.cli.main import main
from mpitrain.cluster.place import read_place


def run() -> NoReturn:
    """Run the command that the process's words name, and leave with its exit code."""
    leave(main())


def leave(code: int) -> NoReturn:
    """End this process; where it is alone, as Python's own multiprocessing ends its children.

    All that was to be done at the end is done, then the process is gone: taking torch apart, which nobody uses any
    more, costs 0.15 s. A launcher's rank takes that time, since libraries such as MPICH tell the launcher of its end
    there: it would take a rank that is gone at once for one that was killed, and kill the others.
    """
    if "torch" not in sys.modules or read_place(os.environ).is_launched or _is_looked_at():
        sys.exit(code)
    from mpitrain.comm.start import end_mpi

    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    end_mpi()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _is_looked_at() -> bool:
    """Tell whether a profiler, a debugger or a preloaded tool may have something to write when Python ends."""
    monitoring = getattr(sys, "monitoring", None)
    tools = [monitoring.get_tool(number) for number in range(6)] if monitoring else []
    return any((sys.flags.interactive, sys.gettrace(), sys.getprofile(), "LD_PRELOAD" in os.environ, *tools))


if __name__ == "__main__":
    run()
