"""Environment variables of the ranks: when, name, value and reason, as a table in the order of the script."""

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
    nccl, ucx = job.gpus_per_node > 0, family != "none"
    openmpi, mpich = family in ("openmpi", "either"), family in ("mpich", "either")
    several, is_alone = nccl and job.total_tasks > 1, job.nodes == 1 and job.network is None
    infiniband, ethernet, interface = job.network == "ib", job.network == "ethernet", job.interface or ""
    adapters = job.adapters.split(",") if infiniband and job.adapters else []
    # UCX wants the port, of which most adapters have one.
    ports = ",".join(one if ":" in one else f"{one}:1" for one in adapters)
    eager_reason = "Open MPI: a gradient leaves at once; by default not above 4 KB"
    lock_reason = "Lustre and NFS often refuse HDF5's locks; many ranks only read one file"
    table = [
        (True, "HDF5_USE_FILE_LOCKING", "FALSE", lock_reason),
        (nccl, "NCCL_DEBUG", job.nccl_debug, "how much NCCL tells of the network that it found"),
        (several, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", "a rank whose peer is gone ends, and does not wait for it"),
        (nccl and infiniband, "NCCL_IB_DISABLE", "0", "InfiniBand was asked for: a site's default must not forbid it"),
        (
            nccl and infiniband,
            "NCCL_IB_TIMEOUT",
            "22",
            "a busy network: 17 s for an answer, and not 4, before it fails",
        ),
        (nccl, "NCCL_IB_HCA", ",".join(adapters), "the adapters that carry gradients between nodes"),
        (nccl and ethernet, "NCCL_IB_DISABLE", "1", "Ethernet was asked for: without this NCCL waits for an adapter"),
        (several and is_alone, "NCCL_IB_DISABLE", "1", "one host: its GPUs reach each other without any adapter"),
        (nccl, "NCCL_SOCKET_IFNAME", interface, "NCCL's first choice may be a management network"),
        (True, "GLOO_SOCKET_IFNAME", interface, "gloo would take the interface that the host's name has"),
        (openmpi and job.tasks_per_node > 1, "OMPI_MCA_btl_sm_eager_limit", "65536", eager_reason),
        (openmpi, "OMPI_MCA_btl_tcp_if_include", interface, "Open MPI: messages over this interface"),
        (mpich, "FI_TCP_IFACE", interface, "MPICH over libfabric: messages over this interface"),
        (ucx, "UCX_NET_DEVICES", ports, "MPI over UCX: messages over these adapters"),
        (ucx and ethernet, "UCX_NET_DEVICES", interface, "MPI over UCX: messages over this interface"),
    ]
    return [Variable(name, value, reason) for is_wanted, name, value, reason in table if is_wanted and value]
