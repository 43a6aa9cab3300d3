"""Environment variables of the ranks: a table of condition, name, value and reason, in the order of the script."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mpitrain.launch.job_request import JobRequest

MpiFamily = Literal["mpich", "openmpi", "either", "none"]


@dataclass(frozen=True)
class Variable:
    """One exported variable; `value` is not quoted yet."""

    name: str
    value: str
    reason: str


def mpi_family_of_srun(job: JobRequest) -> MpiFamily:
    """Return the MPI library of a Slurm job, which follows from the PMI that srun offers."""
    families: dict[str, MpiFamily] = {"pmi2": "mpich", "pmix": "openmpi", "none": "none"}
    return families[job.mpi]


def job_variables(job: JobRequest, family: MpiFamily) -> list[Variable]:
    """Return the environment variables that a job's ranks need, without those that the user sets."""
    nccl, ucx = job.gpus_per_node > 0, family != "none"
    openmpi, mpich = family in ("openmpi", "either"), family in ("mpich", "either")
    several, is_alone = nccl and job.total_tasks > 1, job.nodes == 1 and job.network is None
    infiniband, ethernet, interface = job.network == "ib", job.network == "ethernet", job.interface or ""
    adapters = job.adapters.split(",") if infiniband and job.adapters else []
    # UCX needs adapter:port; most adapters have one port.
    ports = ",".join(one if ":" in one else f"{one}:1" for one in adapters)
    eager_reason = "Open MPI: send gradients up to 64 KiB eagerly (default 4 KiB)"
    lock_reason = "Lustre and NFS often refuse HDF5's locks; the ranks only read the file"
    table = [
        (True, "HDF5_USE_FILE_LOCKING", "FALSE", lock_reason),
        (nccl, "NCCL_DEBUG", job.nccl_debug, "level of NCCL's messages, which name the network that it found"),
        (several, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", "a rank that lost a peer ends instead of waiting for it"),
        (nccl and infiniband, "NCCL_IB_DISABLE", "0", "InfiniBand was requested: overrides a site's default"),
        (
            nccl and infiniband,
            "NCCL_IB_TIMEOUT",
            "22",
            "a busy network: time out after 17 s instead of 4 s",
        ),
        (nccl, "NCCL_IB_HCA", ",".join(adapters), "the adapters that carry gradients between nodes"),
        (nccl and ethernet, "NCCL_IB_DISABLE", "1", "Ethernet was requested: without this NCCL waits for an adapter"),
        (several and is_alone, "NCCL_IB_DISABLE", "1", "one host: its GPUs need no network adapter"),
        (nccl, "NCCL_SOCKET_IFNAME", interface, "by default NCCL may choose a management network"),
        (True, "GLOO_SOCKET_IFNAME", interface, "by default gloo uses the interface of the host name's address"),
        (openmpi and job.tasks_per_node > 1, "OMPI_MCA_btl_sm_eager_limit", "65536", eager_reason),
        (openmpi, "OMPI_MCA_btl_tcp_if_include", interface, "Open MPI: messages over this interface"),
        (mpich, "FI_TCP_IFACE", interface, "MPICH over libfabric: messages over this interface"),
        (ucx, "UCX_NET_DEVICES", ports, "MPI over UCX: messages over these adapters"),
        (ucx and ethernet, "UCX_NET_DEVICES", interface, "MPI over UCX: messages over this interface"),
    ]
    return [Variable(name, value, reason) for is_wanted, name, value, reason in table if is_wanted and value]
