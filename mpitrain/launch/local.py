"""A job request as a script that runs on this host, under mpirun."""

from __future__ import annotations

from mpitrain.errors import UserError
from mpitrain.launch import script_parts as parts
from mpitrain.launch.job_request import JobRequest
from mpitrain.launch.variables import job_variables

_OVERSUBSCRIBE = """\
# more ranks than cores: Open MPI refuses without these, and its waiting ranks would keep the working ones from a core
if ((tasks_per_node > $(nproc))); then
    export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe OMPI_MCA_rmaps_base_oversubscribe=1
    export OMPI_MCA_mpi_yield_when_idle=1
fi"""

_RESTART = """\
while :; do
    exit_code=0
    {run} || exit_code=$?
    may_restart "$exit_code" || exit "$exit_code"
    choose_go_on
    echo "the run ended with exit code $exit_code: again with ${{go_on[*]}}, $restarts_left times more at most"
done"""


def render_local(job: JobRequest) -> str:
    """Return the text of a script for bash on one host. Pure. Raises UserError for more than one host."""
    if job.nodes > 1:
        raise UserError(f"--nodes {job.nodes}: --scheduler local has this host only; use slurm, pbs or manual")
    if job.sweep:
        raise UserError(
            "--sweep: --scheduler local starts one run; add --ensemble, or use slurm or pbs and their job arrays"
        )
    lines = [
        *parts.beginning(job, "Script for this host: bash FILE"),
        "# one name for the run: when it started, and this shell's number",
        "job=$(date +%Y%m%d-%H%M%S)-$$",
        *parts.tasks_per_node(job),
        _OVERSUBSCRIBE,
        "",
        *parts.what_ranks_run(job, job_variables(job, "either")),
        *parts.log_links("1"),
        "",
        parts.CHOOSE_MPIRUN,
        *parts.launcher(job, '"$mpirun" -np "$tasks_per_node"'),
        *_run(job),
    ]
    return "\n".join(lines) + "\n"


def _run(job: JobRequest) -> list[str]:
    words = parts.RUN if job.trains else '"${launch[@]}" "${command[@]}"'
    reason = "# on the terminal and in the log; pipefail keeps mpirun's exit code"
    run = f'{words} 2>&1 | tee -a "logs/${{job}}_node0.log"'
    return [*parts.restarts(job), "", reason, _RESTART.format(run=run)] if job.num_restarts else [reason, run]
