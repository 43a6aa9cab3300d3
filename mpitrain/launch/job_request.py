"""`JobRequest`: the resources that a job requests from a scheduler and the command that it runs, validated."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mpitrain.config import show_value
from mpitrain.errors import UserError
from mpitrain.launch.grammar import (
    AccountName,
    AdapterNames,
    EnvironmentLine,
    HostName,
    InterfaceName,
    JobName,
    Mail,
    Memory,
    ModuleName,
    PathText,
    QueueName,
    SettingText,
    SweepText,
    Walltime,
    walltime_seconds,
)

# Fields whose command-line option has another name.
_WORDS = {
    "command": "--run",
    "num_tasks": "--ntasks",
    "signal_s": "--signal-seconds",
    "modules": "--module",
    "environment": "--env",
    "config_path": "FILE.yaml",
    "settings": "setting",
}

_LARGEST_SWEEP = 1000

Count = Annotated[int, Field(ge=1, le=1_000_000)]
CountOrZero = Annotated[int, Field(ge=0, le=1_000_000)]


class JobRequest(BaseModel):
    """A job: its resources, environment and command. Frozen; every text has an allowed form."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True)

    command: Literal["train", "ensemble", "doctor", "data generate"] = "train"
    """Command that every rank runs."""
    nodes: Count = 1
    """Number of hosts."""
    tasks_per_node: Count = 1
    """Ranks on each host."""
    num_tasks: Count | None = None
    """Total number of ranks if the hosts have different numbers of ranks; null means nodes * tasks_per_node."""
    gpus_per_node: CountOrZero = 0
    """GPUs of each host; each rank needs one."""
    cpus_per_task: Count = 1
    """Cores of each rank, which are also its number of threads."""
    memory: Memory | None = None
    """Memory of each host; null means the site's default."""
    walltime: Walltime = "01:00:00"
    """Time limit."""
    signal_s: Count = 120
    """Seconds before the time limit at which the ranks receive the signal to write a checkpoint and stop."""
    requeue: bool = True
    """Whether the job is requeued automatically after the loss of a host, and by slurm after the signal."""
    restarts: CountOrZero | None = None
    """Maximum number of restarts on the remaining hosts after the loss of a host or rank; null: 3 on several hosts, 0
    on one."""
    partition: QueueName | None = None
    """Slurm's partition, or PBS's queue."""
    account: AccountName | None = None
    """Account that the time is charged to."""
    job_name: JobName = "mpitrain"
    """Name in the queue."""
    mail: Mail | None = None
    """Address that receives a mail when the job ends or fails."""
    modules: tuple[ModuleName, ...] = ()
    """Environment modules to load."""
    environment: tuple[EnvironmentLine, ...] = ()
    """NAME=VALUE lines."""
    mpi: Literal["pmi2", "pmix", "none"] = "pmi2"
    """How srun starts MPI (`srun --mpi`): pmi2 for MPICH and Intel MPI, pmix for Open MPI, none without MPI."""
    network: Literal["ib", "ethernet"] | None = None
    """InfiniBand or Ethernet; null leaves the choice to the libraries."""
    interface: InterfaceName | None = None
    """Network interface for the ranks' messages, such as eth0."""
    adapters: AdapterNames | None = None
    """InfiniBand adapters, such as mlx5_0."""
    nccl_debug: Literal["VERSION", "WARN", "INFO", "TRACE"] = "WARN"
    """Level of NCCL's messages."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Level of the ranks' logs."""
    python: PathText = "python"
    """Python interpreter of the ranks."""
    packed_environment: PathText | None = None
    """A tar file of the Python environment, which each host unpacks for its ranks; null: the ranks load `python`."""
    config_path: PathText | None = None
    """YAML file of settings."""
    settings: tuple[SettingText, ...] = ()
    """Dotted overrides, key.path=value."""
    run_folder: PathText | None = None
    """Run folder; null means a folder named after the job."""
    sweep: tuple[SweepText, ...] = ()
    """key=a,b,... texts: a job array with one job for each combination of their values."""
    hosts: tuple[HostName, ...] = ()
    """Names of the hosts, for --scheduler manual."""
    master_port: Annotated[int, Field(ge=1, le=65535)] = 29500
    """Port on the first host at which the ranks connect, for --scheduler manual."""

    secret: Annotated[str, Field(pattern=r"^[0-9a-f]*$")] = ""
    """Secret that the ranks must present at that port; empty for none."""
    host_number: CountOrZero = 0
    """Index of this host in `hosts`, inside a job of --scheduler manual."""

    @property
    def walltime_s(self) -> int:
        """Time limit in seconds."""
        return walltime_seconds(self.walltime)

    @property
    def combinations(self) -> tuple[tuple[str, ...], ...]:
        """Settings of each job of a sweep; the last key varies fastest. Empty without a sweep."""
        keys = [(key, values.split(",")) for key, _, values in (text.partition("=") for text in self.sweep)]
        choices = [[f"{key}={value}" for value in values] for key, values in keys]
        return tuple(itertools.product(*choices)) if choices else ()

    @property
    def own_variables(self) -> dict[str, str]:
        """Environment variables that the request sets for the ranks."""
        return {name: value for name, _, value in (line.partition("=") for line in self.environment)}

    @property
    def trains(self) -> bool:
        """Whether the job writes a run folder that a later job can resume."""
        return self.command in ("train", "ensemble")

    @property
    def folder_kind(self) -> str:
        """The word in the default name of the run folder."""
        return "ensemble" if self.command == "ensemble" else "run"

    @property
    def num_restarts(self) -> int:
        """Largest number of restarts on the remaining hosts."""
        if not self.trains:
            return 0
        return self.restarts if self.restarts is not None else 3 * (self.nodes > 1)

    @property
    def total_tasks(self) -> int:
        """Total number of ranks."""
        return self.num_tasks or self.nodes * self.tasks_per_node

    @property
    def tasks_of_nodes(self) -> list[int]:
        """Ranks of each host: the first hosts are full, the others have at least one."""
        most, spare = self.tasks_per_node - 1, self.total_tasks - self.nodes  # both without the one rank of each host
        return [1 + min(max(spare - node * most, 0), most) for node in range(self.nodes)]

    @model_validator(mode="after")
    def _check_together(self) -> JobRequest:
        for problem in _problems(self):
            raise ValueError(problem)
        return self


def flag_of(field: str) -> str:
    """Return the command-line option of a field."""
    return _WORDS.get(field, "--" + field.replace("_", "-"))


def make_job_request(**fields: Any) -> JobRequest:
    """Return the checked request. Raises UserError, one line with the field, its value and the allowed values."""
    try:
        return JobRequest(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        reason = str(first.get("ctx", {}).get("error", first["msg"]))
        if not first["loc"]:
            raise UserError(reason) from None
        field = str(first["loc"][0])
        raise UserError(f"job request: {flag_of(field)} {show_value(first['input'])}: {reason}") from None


def _problems(job: JobRequest) -> Iterator[str]:
    """Yield a message for each contradiction between fields, with advice."""
    if job.num_tasks is not None and not job.nodes <= job.num_tasks <= job.nodes * job.tasks_per_node:
        yield (
            f"job request: --ntasks {job.num_tasks}: {job.nodes} nodes of at most {job.tasks_per_node} tasks hold "
            f"{job.nodes} to {job.nodes * job.tasks_per_node}; change --nodes or --tasks-per-node"
        )
    if job.gpus_per_node and job.tasks_per_node > job.gpus_per_node:
        yield (
            f"job request: --tasks-per-node {job.tasks_per_node}: each rank needs a GPU of its own and "
            f"--gpus-per-node is {job.gpus_per_node}; request as many GPUs as tasks"
        )
    if job.signal_s >= job.walltime_s:
        yield (
            f"job request: --signal-seconds {job.signal_s}: not before the end of --walltime {job.walltime} "
            f"({job.walltime_s} s); give fewer seconds"
        )
    if job.hosts and len(job.hosts) != job.nodes:
        yield f"job request: --hosts has {len(job.hosts)} name(s) but --nodes is {job.nodes}; give one host per node"
    if job.host_number >= job.nodes:
        yield f"job request: --host-number {job.host_number}: the hosts are numbered from 0 to {job.nodes - 1}"
    if len(job.combinations) > _LARGEST_SWEEP:
        yield f"--sweep: {len(job.combinations)} combinations, at most {_LARGEST_SWEEP} in one job array; give fewer"
    if job.sweep and job.command != "train":
        yield f"job request: --sweep with the command {job.command}: only training has settings to vary"
