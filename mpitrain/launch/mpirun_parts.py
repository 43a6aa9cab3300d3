"""Parts of the scripts that start their ranks with mpirun."""

from __future__ import annotations

from collections.abc import Iterable
from shlex import quote

from mpitrain.launch.job_request import JobRequest
from mpitrain.launch.variables import Variable

_PATHS = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "MPI4PY_LIBMPI")


def find_mpirun() -> list[str]:
    """Return the choice of mpirun. Needs `python`."""
    return [
        "# an MPI that pip installed lies beside Python, and is the one that Python loads; else the site's own",
        'mpirun=$(dirname "$(command -v "$python")")/mpirun',
        "[[ -x $mpirun ]] || mpirun=mpirun",
        "mpirun=${MPIRUN:-$mpirun}",
    ]


def forwarded_environment(job: JobRequest, variables: Iterable[Variable]) -> list[str]:
    """Return the words that give the ranks of other hosts this script's environment. Needs `launch`."""
    names = [*_PATHS, "OMP_NUM_THREADS", *(variable.name for variable in variables)]
    own = " ".join(quote(line) for line in job.environment)
    return [
        "# not every mpirun hands its environment to other hosts: env does it under all of them",
        "launch+=(env)",
        f"for name in {' '.join(dict.fromkeys(names))}; do",
        '    [[ -z ${!name:-} ]] || launch+=("$name=${!name}")',
        "done",
        *([f"launch+=({own})"] if own else []),
    ]
