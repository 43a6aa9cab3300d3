"""The lines of a job script that put the ranks' Python environment on each host's own disk, and take it away again.

A rank looks at tens of thousands of paths while Python loads torch. A thousand ranks do so all at once, and a shared
file system's metadata server answers each of them; an archive is one file, which each host reads once from end to end.
"""

from __future__ import annotations

from shlex import quote

from mpitrain.launch.job_request import JobRequest

NOT_FOUND_EXIT_CODE = 3

# In a folder that nobody else can write: its name can be guessed, and what lies in it is run.
_UNPACK = """\
# The Python environment, unpacked once on each host's own disk: there a thousand ranks load it, and not from the file
# system that all hosts share. $TMPDIR, or NODE_FOLDER, must be the same path on each host.
archive={archive}
node_environment=${{NODE_FOLDER:-${{TMPDIR:-/tmp}}}}/mpitrain-environment-$job
unpack_environment() {{
    # shellcheck disable=SC2016  # for the hosts' shells, not for this one
    {once_a_host} bash -c 'set -euo pipefail
        fail() {{ echo "$1 on $(hostname): $2" >&2; exit {not_found}; }}
        [[ -r $1 ]] || fail "$1" "cannot be read; make it with: tar -C ENVIRONMENT -cf $1 ."
        mkdir -p -m 700 "$2" 2>/dev/null || fail "$2" "cannot be made; set NODE_FOLDER to a folder of the host"
        [[ -O $2 && ! -L $2 ]] || fail "$2" "belongs to somebody else; set NODE_FOLDER to another folder"
        exec 9>"$2/.lock"
        flock 9
        [[ ! -e $2/.unpacked ]] || exit 0
        tar -xf "$1" -C "$2" || fail "$1" "cannot be unpacked into $2; is it whole, and is there room?"
        [[ -x $2/bin/python ]] || fail "$1" "holds no bin/python; make it with: tar -C ENVIRONMENT -cf $1 ."
        # an archive of conda-pack brings this along: it writes the new place into the files that need it
        [[ ! -e $2/bin/conda-unpack ]] || "$2/bin/python" "$2/bin/conda-unpack"
        : >"$2/.unpacked"' unpack "$archive" "$node_environment"
}}
unpack_environment || exit {not_found}
# shellcheck disable=SC2016
trap '{once_a_host_at_end} rm -rf "$node_environment" || true' EXIT
command[0]=$node_environment/bin/python
export PATH=$node_environment/bin:$PATH"""


def unpack(job: JobRequest, once_a_host: str, once_a_host_at_end: str) -> list[str]:
    """Return the lines; none without an archive. Needs `job`, `command`, and what `once_a_host` (shell text) names.

    `once_a_host` starts what follows it once on every host.
    """
    if job.packed_environment is None:
        return []
    text = _UNPACK.format(
        archive=quote(job.packed_environment),
        once_a_host=once_a_host,
        once_a_host_at_end=once_a_host_at_end,
        not_found=NOT_FOUND_EXIT_CODE,
    )
    return [*text.splitlines(), ""]
