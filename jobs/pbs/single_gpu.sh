#!/usr/bin/env bash
# PBS job script (qsub FILE). Written by `mpitrain launch`; its paths are relative to the folder it is started in.
# Variables of one job: EPOCHS LR BATCH_SIZE DATA OUTPUT SEED BACKEND LOG_LEVEL NCCL_TIMEOUT (s), NPROC_PER_NODE
# (ranks a host), RESUME=1 (continue the run in OUTPUT), PYTHON and CONDA_ENV (the ranks' Python).
#PBS -N single_gpu
# number of hosts; for each host: cores, ranks, threads of a rank, GPUs, memory
#PBS -l select=1:ncpus=8:mpiprocs=1:ompthreads=8:ngpus=1
#PBS -l walltime=04:00:00
# one file for output and errors
#PBS -j oe
# after a lost host the job is requeued and resumes
#PBS -r y

set -euo pipefail
cd "$PBS_O_WORKDIR"  # PBS starts jobs in the home folder
export OMP_NUM_THREADS=8  # one thread per core of a rank
export HDF5_USE_FILE_LOCKING=FALSE  # Lustre and NFS often refuse HDF5's locks; the ranks only read the file
export NCCL_DEBUG=WARN  # level of NCCL's messages, which name the network that it found

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
exec "$python" -P -m mpitrain launch --inside-job --scheduler=pbs --python="$python" --run=train --tasks-per-node=1 \
    --log-level=info --cpus-per-task=8 --walltime=04:00:00 --signal-seconds=120 jobs/configs/gpu.yaml
