#!/usr/bin/env bash
# Slurm batch script (sbatch FILE). Written by `mpitrain launch`; its paths are relative to the folder it is started in.
# Variables of one job: NPROC_PER_NODE (ranks a host), PYTHON and CONDA_ENV (the ranks' Python).
#SBATCH --job-name=doctor
# output of this script; the ranks write to logs/
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --time=00:10:00
#SBATCH --no-requeue

set -euo pipefail
export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"  # one thread per core of a rank
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
exec "$python" -P -m mpitrain launch --inside-job --scheduler=slurm --python="$python" --run=doctor --tasks-per-node=2 \
    --log-level=debug --mpi=pmi2
