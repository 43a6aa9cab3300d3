#!/usr/bin/env bash
# Slurm batch script (sbatch FILE). Written by `mpitrain launch`; its paths are relative to the folder it is started in.
# Variables of one job: EPOCHS LR BATCH_SIZE DATA OUTPUT SEED BACKEND LOG_LEVEL NCCL_TIMEOUT (s), NPROC_PER_NODE
# (ranks a host), RESUME=1 (continue the run in OUTPUT), PYTHON and CONDA_ENV (the ranks' Python).
#SBATCH --job-name=single_gpu
# output of this script; the ranks write to logs/
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=1
#SBATCH --time=04:00:00
# signal before the time limit, to this script only (B:): the ranks then write a checkpoint
#SBATCH --signal=B:USR1@120
#SBATCH --requeue

set -euo pipefail
export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-8}"  # one thread per core of a rank
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
exec "$python" -P -m mpitrain launch --inside-job --scheduler=slurm --python="$python" --run=train --tasks-per-node=1 \
    --log-level=info --mpi=none --gpus-per-node=1 --requeue --restarts=0 jobs/configs/gpu.yaml
