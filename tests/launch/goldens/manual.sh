#!/usr/bin/env bash
# Commands to type on each host: copy a host's block into a shell there, all blocks within 5 minutes.
# The ranks connect over TCP to the first host; gloo, or NCCL on GPUs, sums gradients. MPI is not used.

# ---- host 1 of 2: n1
export OMP_NUM_THREADS=1  # one thread per core of a rank
export HDF5_USE_FILE_LOCKING=FALSE  # Lustre and NFS often refuse HDF5's locks; the ranks only read the file
export GLOO_SOCKET_IFNAME=eth0  # by default gloo uses the interface of the host name's address
export MASTER_ADDR=n1 MASTER_PORT=29500 WORLD_SIZE=3
python=python
"$python" -P -m mpitrain launch --inside-job --scheduler=manual --python="$python" --run=train --tasks-per-node=2 \
    --log-level=info --run-folder=mpitrain_run --job-name=mpitrain --nodes=2 --ntasks=3 --hosts=n1,n2 --host-number=0

# ---- host 2 of 2: n2
export OMP_NUM_THREADS=1  # one thread per core of a rank
export HDF5_USE_FILE_LOCKING=FALSE  # Lustre and NFS often refuse HDF5's locks; the ranks only read the file
export GLOO_SOCKET_IFNAME=eth0  # by default gloo uses the interface of the host name's address
export MASTER_ADDR=n1 MASTER_PORT=29500 WORLD_SIZE=3
python=python
"$python" -P -m mpitrain launch --inside-job --scheduler=manual --python="$python" --run=train --tasks-per-node=2 \
    --log-level=info --run-folder=mpitrain_run --job-name=mpitrain --nodes=2 --ntasks=3 --hosts=n1,n2 --host-number=1
