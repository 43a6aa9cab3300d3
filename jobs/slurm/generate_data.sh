#!/usr/bin/env bash
# Slurm batch script: sbatch FILE
# Written by `mpitrain launch`. Start it from the folder that the paths in it are relative to.
# Read from its environment: NPROC_PER_NODE (ranks a host), PYTHON, CONDA_ENV.
# the name in the queue
#SBATCH --job-name=generate_data
# this script's own words; the ranks' are in logs/
#SBATCH --output=%x-%j.log
# a restarted job adds to its log
#SBATCH --open-mode=append
# hosts
#SBATCH --nodes=1
# ranks on each host
#SBATCH --ntasks-per-node=1
# cores for each rank's threads
#SBATCH --cpus-per-task=1
# the time limit
#SBATCH --time=00:10:00
# the job never restarts
#SBATCH --no-requeue

# a failed command, an unset variable or a broken pipe ends the job at once
set -euo pipefail

# A value from outside is compared with its form and never run.
check() { # NAME VALUE FORM
    [[ $2 =~ ^($3)$ ]] && return
    echo "$1=$2: not of the form $3; correct it or unset $1" >&2
    exit 2
}
# the scheduler's numbers too: bash's arithmetic runs what a number with brackets holds
check SLURM_JOB_ID "${SLURM_JOB_ID:-}" '0|[1-9][0-9]{0,17}'
check SLURM_JOB_NUM_NODES "${SLURM_JOB_NUM_NODES:-}" '0|[1-9][0-9]{0,17}'

# one name for a job and all its restarts
job=$SLURM_JOB_ID

# ranks on each host
tasks_per_node=${NPROC_PER_NODE:-1}
check NPROC_PER_NODE "$tasks_per_node" '[1-9][0-9]{0,8}'

# one thread a core of the rank: without this each rank would start a thread for every core of the host
export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"
check SLURM_CPUS_PER_TASK "$OMP_NUM_THREADS" '[1-9][0-9]{0,8}'
# Lustre and NFS often refuse HDF5's locks; many ranks only read one file
export HDF5_USE_FILE_LOCKING=FALSE

# what runs on every rank
python=python
# the Python of this conda environment, a name or a folder
if [[ -n ${CONDA_ENV:-} ]]; then
    [[ $CONDA_ENV == */* ]] || CONDA_ENV=$(conda info --base)/envs/$CONDA_ENV
    export PATH=$CONDA_ENV/bin:$PATH
    python=$CONDA_ENV/bin/python
fi
python=${PYTHON:-$python}
command -v "$python" >/dev/null || {
    echo "$python: not found on $(hostname); set PYTHON, or load its module" >&2
    exit 3
}
command=("$python" -m mpitrain data generate)
# Read by other scripts, not by this one: what is set is answered.
older() { # NAME ADVICE
    [[ -z ${!1:-} ]] || echo "note: $1=${!1}: not read by this script; $2" >&2
}
for name in EPOCHS LR BATCH_SIZE DATA SEED BACKEND NCCL_TIMEOUT OUTPUT RESUME LOG_LEVEL TRAIN_SAMPLES VAL_SAMPLES DATA_TYPE GPUS; do
    older "$name" 'it runs mpitrain data generate, which trains nothing'
done

# one log a host; latest_nodeN.log is the newest job's (of two that start at once one wins)
mkdir -p logs
for ((node = 0; node < SLURM_JOB_NUM_NODES; node++)); do
    ln -sfn "${job}_node$node.log" "logs/latest_node$node.log" || true
done

launch=(srun)
# without MPI: the ranks meet over TCP, at an address from Slurm's own variables
launch+=(--mpi=none)
# everything above: after `sbatch --export=EPOCHS=200` srun would hand on EPOCHS alone
launch+=(--export=ALL)
# all hosts of the job
launch+=(--nodes="$SLURM_JOB_NUM_NODES")
# ranks in all
launch+=(--ntasks="$((SLURM_JOB_NUM_NODES * tasks_per_node))")
# ranks on each host
launch+=(--ntasks-per-node="$tasks_per_node")
# cores of each rank: since Slurm 22.05 srun does not take them over from sbatch
launch+=(--cpus-per-task="$OMP_NUM_THREADS")
# one rank that fails ends all: the others would wait for it until the time limit
launch+=(--kill-on-bad-exit=1)
# each rank keeps its cores, and with them its caches and its memory
launch+=(--cpu-bind=cores)
# each line begins with its rank
launch+=(--label)
# one log a host
launch+=(--output="logs/${job}_node%n.log")
# a restarted job adds to its logs
launch+=(--open-mode=append)

"${launch[@]}" "${command[@]}"
