#!/usr/bin/env bash
# PBS job script (qsub FILE). Written by `mpitrain launch`; its paths are relative to the folder it is started in.
# Variables of one job: NPROC_PER_NODE (ranks a host), PYTHON and CONDA_ENV (the ranks' Python).
#PBS -N generate_data
# number of hosts; for each host: cores, ranks, threads of a rank, GPUs, memory
#PBS -l select=1:ncpus=1:mpiprocs=1:ompthreads=1
#PBS -l walltime=00:10:00
# one file for output and errors
#PBS -j oe
#PBS -r n

set -euo pipefail
cd "$PBS_O_WORKDIR"  # PBS starts jobs in the home folder
export OMP_NUM_THREADS=1  # one thread per core of a rank
export HDF5_USE_FILE_LOCKING=FALSE  # Lustre and NFS often refuse HDF5's locks; the ranks only read the file

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
exec "$python" -P -m mpitrain launch --inside-job --scheduler=pbs --python="$python" '--run=data generate' \
    --tasks-per-node=1 --log-level=debug --cpus-per-task=1 --walltime=00:10:00 --signal-seconds=60
