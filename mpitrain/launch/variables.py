"""Environment variables of the ranks: name, value and reason, as a table in the order of the script."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mpitrain.launch.job_request import JobRequest

MpiFamily = Literal["mpich", "openmpi", "either", "none"]


@dataclass(frozen=True)
class Variable:
    """One exported variable; `value` is plain text that needs no quoting."""

    name: str
    value: str
    reason: str


def mpi_family_of_srun(job: JobRequest) -> MpiFamily:
    """Which MPI reads the variables of a Slurm job: each PMI has its own."""
    families: dict[str, MpiFamily] = {"pmi2": "mpich", "pmix": "openmpi", "none": "none"}
    return families[job.mpi]


def job_variables(job: JobRequest, family: MpiFamily) -> list[Variable]:
    """Return what a job's ranks need in their environment, without the user's own lines."""
    return [*_always(), *_gpu(job), *_sockets(job), *_openmpi(job, family), *_mpich(job, family), *_ucx(job, family)]


def _always() -> list[Variable]:
    return [
        Variable(
            "HDF5_USE_FILE_LOCKING", "FALSE", "Lustre and NFS often refuse HDF5's locks; many ranks only read one file"
        )
    ]


def _gpu(job: JobRequest) -> list[Variable]:
    if not job.gpus_per_node:
        return []
    lines = [Variable("NCCL_DEBUG", job.nccl_debug, "how much NCCL tells of the network that it found")]
    if job.network == "ib":
        lines.append(Variable("NCCL_IB_DISABLE", "0", "InfiniBand was asked for: a site's default must not forbid it"))
    if job.network == "ib" and job.adapters:
        lines.append(Variable("NCCL_IB_HCA", job.adapters, "the adapters that carry gradients between nodes"))
    if job.network == "ethernet":
        lines.append(Variable("NCCL_IB_DISABLE", "1", "Ethernet was asked for: without this NCCL waits for an adapter"))
    if job.interface:
        lines.append(Variable("NCCL_SOCKET_IFNAME", job.interface, "NCCL's first choice may be a management network"))
    return lines


def _sockets(job: JobRequest) -> list[Variable]:
    if not job.interface:
        return []
    return [Variable("GLOO_SOCKET_IFNAME", job.interface, "gloo would take the interface that the host's name has")]


def _openmpi(job: JobRequest, family: MpiFamily) -> list[Variable]:
    if family not in ("openmpi", "either"):
        return []
    lines = []
    if job.tasks_per_node > 1:
        reason = "Open MPI: a gradient of 20 KB leaves at once; by its default of 4 KB the ranks shake hands first"
        lines.append(Variable("OMPI_MCA_btl_sm_eager_limit", "65536", reason))
    if job.interface:
        lines.append(Variable("OMPI_MCA_btl_tcp_if_include", job.interface, "Open MPI: messages over this interface"))
    return lines


def _mpich(job: JobRequest, family: MpiFamily) -> list[Variable]:
    if family not in ("mpich", "either") or not job.interface:
        return []
    return [Variable("FI_TCP_IFACE", job.interface, "MPICH over libfabric: messages over this interface")]


def _ucx(job: JobRequest, family: MpiFamily) -> list[Variable]:
    if family == "none":
        return []
    if job.network == "ib" and job.adapters:
        devices = ",".join(_with_port(name) for name in job.adapters.split(","))
        return [Variable("UCX_NET_DEVICES", devices, "MPI over UCX: messages over these adapters")]
    if job.network == "ethernet" and job.interface:
        return [Variable("UCX_NET_DEVICES", job.interface, "MPI over UCX: messages over this interface")]
    return []


def _with_port(adapter: str) -> str:
    return adapter if ":" in adapter else f"{adapter}:1"  # UCX wants the port, of which most adapters have one
