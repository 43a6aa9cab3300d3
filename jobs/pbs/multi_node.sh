#!/usr/bin/env bash
# PBS job script (qsub FILE). Written by `mpitrain launch`; its paths are relative to the folder it is started in.
# Variables of one job: EPOCHS LR BATCH_SIZE DATA OUTPUT SEED BACKEND LOG_LEVEL NCCL_TIMEOUT (s), NPROC_PER_NODE
# (ranks a host), RESUME=1 (continue the run in OUTPUT), PYTHON and CONDA_ENV (the ranks' Python).
#PBS -N multi_node
# number of hosts; for each host: cores, ranks, threads of a rank, GPUs, memory
#PBS -l select=2:ncpus=32:mpiprocs=4:ompthreads=8:ngpus=4
#PBS -l place=scatter
#PBS -l walltime=12:00:00
# one file for output and errors
#PBS -j oe
# after a lost host the job is requeued and resumes
#PBS -r y

set -euo pipefail
cd "$PBS_O_WORKDIR"  # PBS starts jobs in the home folder
export OMP_NUM_THREADS=8  # one thread per core of a rank
export HDF5_USE_FILE_LOCKING=FALSE  # Lustre and NFS often refuse HDF5's locks; the ranks only read the file
export NCCL_DEBUG=WARN  # level of NCCL's messages, which name the network that it found
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1  # a rank that lost a peer ends instead of waiting for it
export NCCL_IB_DISABLE=0  # InfiniBand was requested: overrides a site's default
export NCCL_IB_TIMEOUT=22  # a busy network: time out after 17 s instead of 4 s
export NCCL_SOCKET_IFNAME=ib0  # by default NCCL may choose a management network
export GLOO_SOCKET_IFNAME=ib0  # by default gloo uses the interface of the host name's address
export OMPI_MCA_btl_sm_eager_limit=65536  # Open MPI: send gradients up to 64 KiB eagerly (default 4 KiB)
export OMPI_MCA_btl_tcp_if_include=ib0  # Open MPI: messages over this interface
export FI_TCP_IFACE=ib0  # MPICH over libfabric: messages over this interface

python=python
if [[ -n ${CONDA_ENV:-} ]]; then  # a name, or a folder
    [[ $CONDA_ENV == */* ]] || CONDA_ENV=$(conda info --base 2>/dev/null)/envs/$CONDA_ENV || {
        echo "CONDA_ENV: no conda on the PATH of $(hostname); load its module, or give the environment's folder" >&2
        exit 3
    }
    python=$CONDA_ENV/bin/python PATH=$CONDA_ENV/bin:$PATH
fi
python=${PYTHON:-$python}
if ! command -v "$python" >/dev/null; then
    echo "$python: not found on $(hostname); set PYTHON, or load its module" >&2
    exit 3
fi
exec "$python" -P -m mpitrain launch --inside-job --scheduler=pbs --python="$python" --run=train --tasks-per-node=4 \
    --log-level=info --cpus-per-task=8 --walltime=12:00:00 --signal-seconds=120 jobs/configs/gpu.yaml
