#!/usr/bin/env bash
# Slurm batch script: sbatch FILE
# Written by `mpitrain launch`. Start it from the folder that the paths in it are relative to.
# Settings of one job, from its environment: EPOCHS LR BATCH_SIZE DATA OUTPUT SEED, BACKEND LOG_LEVEL, and
# NPROC_PER_NODE (ranks a host), RESUME=1 (go on in OUTPUT), PYTHON, CONDA_ENV, NCCL_TIMEOUT (s).
# the name in the queue
#SBATCH --job-name=mpitrain
# this script's own words; the ranks' are in logs/
#SBATCH --output=%x-%j.log
# a restarted job adds to its log
#SBATCH --open-mode=append
# hosts
#SBATCH --nodes=2
# ranks on each host
#SBATCH --ntasks-per-node=1
# cores for each rank's threads
#SBATCH --cpus-per-task=1
# the time limit
#SBATCH --time=01:00:00
# before the limit USR1, and to this shell only (B:): it must know why the run stopped
#SBATCH --signal=B:USR1@120
# a lost host does not end the job: the others go on
#SBATCH --no-kill
# after a lost host or the time limit the job goes on
#SBATCH --requeue

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

# one log a host; latest_nodeN.log is the newest job's (of two that start at once one wins)
mkdir -p logs
for ((node = 0; node < SLURM_JOB_NUM_NODES; node++)); do
    ln -sfn "${job}_node$node.log" "logs/latest_node$node.log" || true
done

launch=(srun)
# how MPI's ranks find each other; with the wrong kind each would believe to be alone
launch+=(--mpi=pmi2)
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
# but a lost host ends the run, which then starts again
launch+=(--no-kill=off)
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

# The Python environment, unpacked once on each host's own disk: there a thousand ranks load it, and not from the file
# system that all hosts share. $TMPDIR, or NODE_FOLDER, must be the same path on each host.
archive='it'"'"'s my.tar'
node_environment=${NODE_FOLDER:-${TMPDIR:-/tmp}}/mpitrain-environment-$job
unpack_environment() {
    # shellcheck disable=SC2016  # for the hosts' shells, not for this one
    srun --mpi=none --overlap --export=ALL --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 bash -c 'set -euo pipefail
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
trap 'timeout 60 srun --mpi=none --overlap --export=ALL --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 rm -rf "$node_environment" || true' EXIT
command[0]=$node_environment/bin/python
export PATH=$node_environment/bin:$PATH

# The warning before the time limit comes to this shell only: srun hands it to the ranks, which write a checkpoint and
# leave with exit code 5. TERM reaches them by itself, and is not passed on: srun would kill them.
warned=0 interrupted=0 run=
trap 'warned=1 interrupted=1; kill -USR1 "$run" 2>/dev/null || true' USR1
trap 'interrupted=1' TERM
# A rank that fails alone leaves its exit code here: MPI_Abort has srun kill the others, which makes srun's code 137.
export MPITRAIN_EXIT_CODE_FILE=$PWD/logs/${job}_exit_code
run_once() {
    interrupted=0
    rm -f "$MPITRAIN_EXIT_CODE_FILE"
    # in the background: a shell that waits for a command in the foreground would see the warning after its end
    "${launch[@]}" "${command[@]}" ${go_on[@]+"${go_on[@]}"} &
    run=$!
    # A signal ends `wait` before the run has ended: wait again, until it has.
    while :; do
        exit_code=0
        wait "$run" || exit_code=$?
        ((interrupted)) || break
        interrupted=0
    done
    # Not 3: a rank that lost the others is what a lost host leaves behind, which may start again.
    if ((exit_code > 5)) && [[ -s $MPITRAIN_EXIT_CODE_FILE && $(<"$MPITRAIN_EXIT_CODE_FILE") != 3 ]]; then
        exit_code=$(<"$MPITRAIN_EXIT_CODE_FILE")
    fi
}
# What a lost host or a killed rank leaves behind may start again; a wrong input, a failed training (codes 1, 2, 4) and
# a stop that was asked for (5) may not. Code 3 may where the run had begun: a rank did not answer any more.
restarts_left=3
may_restart() { # EXIT_CODE
    ((restarts_left > 0)) || return 1
    case $1 in
        0|1|2|4|5) return 1 ;;
        3) compgen -G "$run_folder/checkpoints/*/commit.json" >/dev/null || return 1 ;;
    esac
    restarts_left=$((restarts_left - 1))
}
# Slurm keeps a job with --no-kill whose first host is lost, and this shell with it, until the time limit. Two of the
# other hosts look now and then whether that is so, and send the job back into the queue; logs/JOB_watch.log says so.
watcher=
watch_first_host() {
    local hosts others
    mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    others=("${hosts[@]:1:2}")
    ((${#others[@]})) || return 0
    # shellcheck disable=SC2016,SC2094  # for the shell on those hosts, which has the name of its log
    srun --mpi=none --overlap --no-kill --nodes="${#others[@]}" --ntasks="${#others[@]}" --output=none \
        --nodelist="$(IFS=,; echo "${others[*]}")" bash -c 'while sleep 30; do
            shown=$(scontrol --oneliner show job "$1") && [[ $shown == *JobState=RUNNING* ]] || continue
            [[ $shown =~ \ NodeList=([^ ]+) ]] || continue
            if scontrol show hostnames "${BASH_REMATCH[1]}" | grep -qxF "$2"; then continue; fi
            echo "$2, the first host, is lost: back into the queue, to go on from the checkpoint" >>"$3"
            scontrol requeue "$1" || scancel "$1"
            exit
        done' watch "$SLURM_JOB_ID" "${hosts[0]}" "logs/${job}_watch.log" 2>>"logs/${job}_watch.log" &
    watcher=$!
}
watch_first_host

# Which hosts still answer: each is asked, all at once, and has 30 seconds. Sets `alive`.
probe_hosts() {
    local hosts host probes=()
    mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    mkdir -p "logs/${job}_alive" && rm -f "logs/${job}_alive"/*
    for host in "${hosts[@]}"; do
        {
            timeout -k 5 30 srun --mpi=none --overlap --nodes=1 --ntasks=1 --nodelist="$host" true \
                >/dev/null 2>&1 && : >"logs/${job}_alive/$host"
        } &
        probes+=($!)
    done
    wait "${probes[@]}" || true
    alive=()
    for host in "${hosts[@]}"; do
        [[ ! -e logs/${job}_alive/$host ]] || alive+=("$host")
    done
    rm -rf "logs/${job}_alive"
}

# a job that is cancelled stays so
cancelled=0
trap 'cancelled=1 interrupted=1' TERM
while :; do
    run_once
    # Results do not depend on the number of ranks: what is left goes on from the newest checkpoint, with no queue.
    if ((warned || cancelled)) || ! may_restart "$exit_code"; then break; fi
    probe_hosts
    if ((warned || cancelled || ${#alive[@]} == 0)); then break; fi
    choose_go_on
    num_tasks=$((${#alive[@]} * tasks_per_node))
    launch+=(--nodes="${#alive[@]}" --nodelist="$(IFS=,; echo "${alive[*]}")" --ntasks="$num_tasks")
    echo "the run ended with exit code $exit_code; ${#alive[@]} of $SLURM_JOB_NUM_NODES hosts answer: again with" \
        "${go_on[*]} and $num_tasks ranks on ${alive[*]}, $restarts_left times more at most"
done
[[ -z $watcher ]] || kill "$watcher" 2>/dev/null || true
# Stopped by the warning: back into the queue, to go on from the checkpoint. 137 and 143 count too: srun ends ranks that
# leave a moment after the first one. Without a warning (scancel, a failure) the job is over.
if ((warned)) && ((exit_code == 5 || exit_code == 137 || exit_code == 143)); then
    echo "stopped before the time limit; requeued to go on from the checkpoint"
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$exit_code"
