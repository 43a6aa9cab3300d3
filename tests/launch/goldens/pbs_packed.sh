#!/usr/bin/env bash
# PBS job script: qsub FILE
# Written by `mpitrain launch`. Start it from the folder that the paths in it are relative to.
# Settings of one job, from its environment: EPOCHS LR BATCH_SIZE DATA OUTPUT SEED, BACKEND LOG_LEVEL, and
# NPROC_PER_NODE (ranks a host), RESUME=1 (go on in OUTPUT), PYTHON, CONDA_ENV, NCCL_TIMEOUT (s).
# the name in the queue
#PBS -N mpitrain
# hosts, and of each: cores, ranks, threads of a rank, GPUs, memory
#PBS -l select=2:ncpus=1:mpiprocs=1:ompthreads=1
# whole hosts' shares apart, not all on one host
#PBS -l place=scatter
# the time limit
#PBS -l walltime=01:00:00
# one file for output and errors
#PBS -j oe
# after a lost host the job starts again, and goes on
#PBS -r y

# a failed command, an unset variable or a broken pipe ends the job at once
set -euo pipefail

# A value from outside is compared with its form and never run.
check() { # NAME VALUE FORM
    [[ $2 =~ ^($3)$ ]] && return
    echo "$1=$2: not of the form $3; correct it or unset $1" >&2
    exit 2
}

# PBS starts jobs in the home folder
cd "$PBS_O_WORKDIR"
# one name for a job and all its restarts: its number, without the server and an array's brackets
job=${PBS_JOBID%%.*}
job=${job//[^A-Za-z0-9_-]/_}
# ranks on each host
tasks_per_node=${NPROC_PER_NODE:-1}
check NPROC_PER_NODE "$tasks_per_node" '[1-9][0-9]{0,8}'

# one thread a core of the rank: without this each rank would start a thread for every core of the host
export OMP_NUM_THREADS=1
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
command=("$python" -m mpitrain train)
# how much the ranks' logs hold
log_level=${LOG_LEVEL:-info}
check LOG_LEVEL "$log_level" 'debug|info|warning|error|DEBUG|INFO|WARNING|ERROR'
command+=(--log-level "$log_level")
# A setting of this one job from its environment; printed, since a shell's own variable may have such a name.
take() { # NAME KEY FORM
    local value=${!1:-}
    [[ -n $value ]] || return 0
    check "$1" "$value" "$3"
    echo "$1 of the environment: $2=$value"
    command+=("$2=$value")
}
take EPOCHS training.epochs '[1-9][0-9]{0,8}'
take LR training.optimizer.learning_rate '[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?'
take BATCH_SIZE training.batch_size '[1-9][0-9]{0,8}|full'
take DATA data.data_path '[A-Za-z0-9_./][A-Za-z0-9_./+,@%=-]*'
take SEED seed '0|[1-9][0-9]{0,17}'
take BACKEND compute.backend 'auto|mpi|gloo|nccl|nccl_if_available'
take NCCL_TIMEOUT distributed.timeout_s '[1-9][0-9]{0,8}'
# Read by other scripts, not by this one: what is set is answered.
older() { # NAME ADVICE
    [[ -z ${!1:-} ]] || echo "note: $1=${!1}: not read by this script; $2" >&2
}
older TRAIN_SAMPLES 'set data.num_samples or data.max_patterns in the settings'
older VAL_SAMPLES 'set data.validation_split in the settings'
older DATA_TYPE 'set data.samples in the settings'
older GPUS 'write the script with --gpus-per-node, or set NPROC_PER_NODE to start fewer ranks'
# the run folder: named, or one for each job
run_folder=mpitrain_run-$job
run_folder=${OUTPUT:-$run_folder}
[[ -z ${OUTPUT:-} ]] || check OUTPUT "$OUTPUT" '[A-Za-z0-9_./][A-Za-z0-9_./+,@%=-]*'
# in YAML's quotes, so that a name like 123 stays text
command+=("output.model_dir='${run_folder//\'/\'\'}'")
# A restarted job goes on from its newest checkpoint. The folder's job_id tells its own earlier attempt, which may be
# replaced where it has no checkpoint yet, from a run of another job, which the training refuses to touch.
choose_go_on() {
    go_on=()
    if [[ ${RESUME:-} == 1 ]]; then
        go_on=(--resume)
    elif [[ -f $run_folder/job_id && $(<"$run_folder/job_id") == "$job" ]]; then
        if compgen -G "$run_folder/checkpoints/*/commit.json" >/dev/null; then
            go_on=(--resume)
        else
            go_on=(--overwrite)
        fi
    fi
}
choose_go_on
if [[ ${RESUME:-} == 1 || ! ( -e $run_folder/config.yaml || -e $run_folder/checkpoints ) ]]; then
    mkdir -p "$run_folder"
    echo "$job" >"$run_folder/job_id"
fi

# each host once, in the job's order
mapfile -t hosts < <(awk '!seen[$0]++' "$PBS_NODEFILE")
# one log a host; latest_nodeN.log is the newest job's (of two that start at once one wins)
mkdir -p logs
for ((node = 0; node < ${#hosts[@]}; node++)); do
    ln -sfn "${job}_node$node.log" "logs/latest_node$node.log" || true
done

# an MPI that pip installed lies next to Python, and is the one that Python loads; else the site's own
mpirun=$(dirname "$(command -v "$python")")/mpirun
[[ -x $mpirun ]] || mpirun=mpirun
mpirun=${MPIRUN:-$mpirun}
printf "%s\n" "${hosts[@]}" >"logs/${job}_each_host"
# The Python environment, unpacked once on each host's own disk: there a thousand ranks load it, and not from the file
# system that all hosts share. $TMPDIR, or NODE_FOLDER, must be the same path on each host.
archive='it'"'"'s my.tar'
node_environment=${NODE_FOLDER:-${TMPDIR:-/tmp}}/mpitrain-environment-$job
unpack_environment() {
    # shellcheck disable=SC2016  # for the hosts' shells, not for this one
    "$mpirun" -machinefile "logs/${job}_each_host" -np "${#hosts[@]}" bash -c 'set -euo pipefail
        fail() { echo "$1 on $(hostname): $2" >&2; exit 3; }
        [[ -r $1 ]] || fail "$1" "cannot be read; make it with: tar -C ENVIRONMENT -cf $1 ."
        mkdir -p -m 700 "$2" 2>/dev/null || fail "$2" "cannot be made; set NODE_FOLDER to a folder of the host"
        [[ -O $2 && ! -L $2 ]] || fail "$2" "belongs to somebody else; set NODE_FOLDER to another folder"
        exec 9>"$2/.lock"
        flock 9
        [[ ! -e $2/.unpacked ]] || exit 0
        tar -xf "$1" -C "$2" || fail "$1" "cannot be unpacked into $2; is it whole, and is there room?"
        [[ -x $2/bin/python ]] || fail "$1" "holds no bin/python; make it with: tar -C ENVIRONMENT -cf $1 ."
        # an archive of conda-pack brings this along: it writes the new place into the files that need it
        [[ ! -e $2/bin/conda-unpack ]] || "$2/bin/python" "$2/bin/conda-unpack"
        : >"$2/.unpacked"' unpack "$archive" "$node_environment"
}
unpack_environment || exit 3
# shellcheck disable=SC2016
trap 'timeout 60 "$mpirun" -machinefile "logs/${job}_each_host" -np "${#hosts[@]}" rm -rf "$node_environment" || true' EXIT
command[0]=$node_environment/bin/python
export PATH=$node_environment/bin:$PATH

# the file names each host once for every rank; NPROC_PER_NODE asks for another number of them
hostfile=$PBS_NODEFILE num_tasks=$(wc -l <"$PBS_NODEFILE")
if [[ -n ${NPROC_PER_NODE:-} ]]; then
    hostfile=logs/${job}_hosts
    for host in "${hosts[@]}"; do
        for ((task = 0; task < tasks_per_node; task++)); do echo "$host"; done
    done >"$hostfile"
    num_tasks=$(wc -l <"$hostfile")
fi
launch=("$mpirun" -machinefile "$hostfile" -np "$num_tasks")
# not every mpirun hands its environment to other hosts: env does it under all of them
launch+=(env)
for name in PATH LD_LIBRARY_PATH PYTHONPATH MPI4PY_LIBMPI OMP_NUM_THREADS HDF5_USE_FILE_LOCKING; do
    [[ -z ${!name:-} ]] || launch+=("$name=${!name}")
done
# mpirun brings all output to one place: each rank writes into its own host's log instead, numbered as in the job
# shellcheck disable=SC2016  # for the ranks' shells, not for this one
launch+=(bash -c '
    job=$1 node=0
    for host in $2; do [[ $host == "$(hostname -s)" ]] && break; node=$((node + 1)); done
    shift 2
    exec "$@" >>"logs/${job}_node$node.log" 2>&1
' rank "$job" "${hosts[*]%%.*}")

# PBS sends no warning before the limit: `timeout` does. mpirun hands it to the ranks, which write a checkpoint and
# leave with exit code 5. In the foreground: mpirun alone is told, not its helpers, which would die of it.
exit_code=0
timeout --foreground --preserve-status --signal=USR1 3480 "${launch[@]}" "${command[@]}" ${go_on[@]+"${go_on[@]}"} || exit_code=$?
if ((exit_code == 5)); then
    echo "stopped with a checkpoint; to go on: qsub -v RESUME=1,OUTPUT=$run_folder SCRIPT"
fi
exit "$exit_code"
