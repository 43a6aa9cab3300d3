#!/usr/bin/env bash
# Commands to type on each host: copy one host's block into a shell there, all blocks within half an hour.
# The ranks meet over TCP on the first host; gradients go over gloo, or NCCL on GPUs. MPI takes no part.

# ---- host 1 of 2: n1
# one thread a core of the rank: without this each rank would start a thread for every core of the host
export OMP_NUM_THREADS=1
# Lustre and NFS often refuse HDF5's locks; many ranks only read one file
export HDF5_USE_FILE_LOCKING=FALSE
# gloo would take the interface that the host's name has
export GLOO_SOCKET_IFNAME=eth0
# where the ranks meet, and how many they are
export MASTER_ADDR=n1 MASTER_PORT=29500 WORLD_SIZE=3
# what this host's ranks say: on the terminal and in a log
mkdir -p logs; log=mpitrain-$(date +%Y%m%d-%H%M%S)_node0.log
ln -sfn "$log" logs/latest_node0.log
# each rank's number in all and on this host
RANK=0 LOCAL_RANK=0 python -m mpitrain train output.model_dir=mpitrain_run --log-level info 2>&1 | tee -a "logs/$log" &
RANK=1 LOCAL_RANK=1 python -m mpitrain train output.model_dir=mpitrain_run --log-level info 2>&1 | tee -a "logs/$log" &
# ends when the ranks of this host have ended
wait

# ---- host 2 of 2: n2
# one thread a core of the rank: without this each rank would start a thread for every core of the host
export OMP_NUM_THREADS=1
# Lustre and NFS often refuse HDF5's locks; many ranks only read one file
export HDF5_USE_FILE_LOCKING=FALSE
# gloo would take the interface that the host's name has
export GLOO_SOCKET_IFNAME=eth0
# where the ranks meet, and how many they are
export MASTER_ADDR=n1 MASTER_PORT=29500 WORLD_SIZE=3
# what this host's ranks say: on the terminal and in a log
mkdir -p logs; log=mpitrain-$(date +%Y%m%d-%H%M%S)_node1.log
ln -sfn "$log" logs/latest_node1.log
# each rank's number in all and on this host
RANK=2 LOCAL_RANK=0 python -m mpitrain train output.model_dir=mpitrain_run --log-level info 2>&1 | tee -a "logs/$log" &
# ends when the ranks of this host have ended
wait
