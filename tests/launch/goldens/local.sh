#!/usr/bin/env bash
# Script for this host: bash FILE
# Written by `mpitrain launch`. Start it from the folder that the paths in it are relative to.
# Settings of one job, from its environment: EPOCHS LR BATCH_SIZE DATA OUTPUT SEED, BACKEND LOG_LEVEL, and
# NPROC_PER_NODE (ranks a host), RESUME=1 (go on in OUTPUT), PYTHON, CONDA_ENV, NCCL_TIMEOUT (s).

# a failed command, an unset variable or a broken pipe ends the job at once
set -euo pipefail

# A value from outside is compared with its form and never run.
check() { # NAME VALUE FORM
    [[ $2 =~ ^($3)$ ]] && return
    echo "$1=$2: not of the form $3; correct it or unset $1" >&2
    exit 2
}

# one name for the run: when it started, and this shell's number
job=$(date +%Y%m%d-%H%M%S)-$$
# ranks on each host
tasks_per_node=${NPROC_PER_NODE:-4}
check NPROC_PER_NODE "$tasks_per_node" '[1-9][0-9]{0,8}'
# more ranks than cores: Open MPI refuses without these, and its waiting ranks would keep the working ones from a core
if ((tasks_per_node > $(nproc))); then
    export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe OMPI_MCA_rmaps_base_oversubscribe=1
    export OMPI_MCA_mpi_yield_when_idle=1
fi

# one thread a core of the rank: without this each rank would start a thread for every core of the host
export OMP_NUM_THREADS=1
# Lustre and NFS often refuse HDF5's locks; many ranks only read one file
export HDF5_USE_FILE_LOCKING=FALSE
# Open MPI: a gradient of 20 KB leaves at once; by its default of 4 KB the ranks shake hands first
export OMPI_MCA_btl_sm_eager_limit=65536

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
command+=(training.epochs=3)
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

# one log a host; latest_nodeN.log is the newest job's (of two that start at once one wins)
mkdir -p logs
for ((node = 0; node < 1; node++)); do
    ln -sfn "${job}_node$node.log" "logs/latest_node$node.log" || true
done

# an MPI that pip installed lies next to Python, and is the one that Python loads; else the site's own
mpirun=$(dirname "$(command -v "$python")")/mpirun
[[ -x $mpirun ]] || mpirun=mpirun
mpirun=${MPIRUN:-$mpirun}
launch=("$mpirun" -np "$tasks_per_node")
# on the terminal and in the log; pipefail keeps mpirun's exit code
"${launch[@]}" "${command[@]}" ${go_on[@]+"${go_on[@]}"} 2>&1 | tee -a "logs/${job}_node0.log"
