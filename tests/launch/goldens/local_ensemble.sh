#!/usr/bin/env bash
# Script for this host (bash FILE). Written by `mpitrain launch`; its paths are relative to the folder it is started in.
# Variables of one job: EPOCHS LR BATCH_SIZE DATA OUTPUT SEED BACKEND LOG_LEVEL NCCL_TIMEOUT (s), NPROC_PER_NODE
# (ranks a host), RESUME=1 (continue the run in OUTPUT), PYTHON and CONDA_ENV (the ranks' Python).

set -euo pipefail
export OMP_NUM_THREADS=1  # one thread per core of a rank
export HDF5_USE_FILE_LOCKING=FALSE  # Lustre and NFS often refuse HDF5's locks; the ranks only read the file
export OMPI_MCA_btl_sm_eager_limit=65536  # Open MPI: send gradients up to 64 KiB eagerly (default 4 KiB)

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
exec "$python" -P -m mpitrain launch --inside-job --scheduler=local --python="$python" --run=ensemble \
    --tasks-per-node=4 --log-level=info --restarts=1
