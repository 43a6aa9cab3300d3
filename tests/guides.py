"""What users of five HPC guides type or have, row by row, each by command; and what becomes of it.

`pytest -k row07` runs the cases of one row. An outcome is one of three:

* `Sets`: it takes effect, and is seen there;
* `Says`: it is taken, has no effect, and one line says so;
* `Names`: it is refused, in one line that names what to use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Sets:
    """The setting, option or word of the script that it becomes, and its value."""

    key: str
    value: object = None


@dataclass(frozen=True)
class Says:
    """How the line begins that says that it has no effect."""

    words: str


@dataclass(frozen=True)
class Names:
    """Words of the line that names what to use, and the exit code."""

    words: str
    code: int = 2


Outcome = Sets | Says | Names
Cases = tuple[tuple[str, Outcome], ...]


@dataclass(frozen=True)
class Row:
    """What users have, and its cases by the command that they are given to; each kind of case has one test."""

    users_have: str
    files: Cases = ()
    """Lines of a file: `mpitrain config show FILE` (cli/test_cli_older_habits.py::test_a_key_in_a_file)."""
    train: Cases = ()
    """`mpitrain train ...` (cli/test_cli_older_habits.py::test_a_flag_of_train)."""
    launch: Cases = ()
    """`mpitrain launch ...` (cli/test_cli_older_habits.py::test_a_flag_of_launch)."""
    commands: Cases = ()
    """`mpitrain ...` (cli/test_cli_older_habits.py::test_a_flag_of_another_command)."""
    runs: Cases = ()
    """`mpitrain train ...` with data, to its end (cli/test_cli_older_habits.py::test_what_only_a_run_can_tell)."""
    starts: Cases = ()
    """`VARIABLES python -m mpitrain train` (cli/test_cli_guides.py::test_a_start_that_its_variables_contradict)."""
    jobs: Cases = ()
    """A job script with a variable (launch/test_launch_older_variables.py::test_each_variable_takes_effect_...)."""
    tests: tuple[str, ...] = ()
    """Tests that have this row alone: those of several ranks, ports and GPUs."""


RATE, CLIP = "training.optimizer.learning_rate", "training.gradient_clip_norm"
RANKS = "the launcher sets the number of ranks: mpirun -np N"
SAVE = "training.save_interval, in epochs"
_LEAVE_IT_OUT = "leave it out, it cannot be chosen here"
_WITHOUT_THE_FLAG = "--config_path: write FILE.yaml without the option"
_IN_ITS_FOLDER = "a run's settings are in its folder: mpitrain"
_NO_NAMES = "no such file; there are no named settings here;"
_ALONE = "but this is the only process: nothing started the others; put"
_BY_HAND = "`mpitrain launch --scheduler manual --hosts"

GUIDES = (
    Row(
        "`--config_path FILE`, of every command",
        train=(("--config_path run.yaml", Sets("seed", 11)),),
        launch=(("--config_path run.yaml", Sets("run.yaml")),),
        commands=(
            ("predict --config_path run.yaml", Names(f"--config_path: {_IN_ITS_FOLDER} predict FOLDER and single set")),
            ("export --config run.yaml", Names(f"--config: {_IN_ITS_FOLDER} export FOLDER; see")),
            ("report -c run.yaml", Names(f"-c: {_IN_ITS_FOLDER} report FOLDER; see")),
            ("reproduce run --config-file=run.yaml", Names(f"--config-file: {_IN_ITS_FOLDER} reproduce FOLDER; see")),
            ("verify --config_path run.yaml", Names(_WITHOUT_THE_FLAG)),
            ("data stats --config_path run.yaml", Names(_WITHOUT_THE_FLAG)),
            ("bench scaling --config_path run.yaml", Names(_WITHOUT_THE_FLAG)),
            ("data generate --config_path run.yaml", Names("--config_path: this command has no settings")),
            ("predict --checkpoint best.pt --config_path run.yaml", Names("--checkpoint: give the folder of a run")),
        ),
    ),
    Row(
        "`--world-size $SLURM_NTASKS --local-rank $SLURM_LOCALID`",
        train=(
            ("--world-size 1 --rank 0 --local_rank 0 --node-rank=0 seed=3", Sets("seed", 3)),
            ("--world-size 4",
             Names("it is 1 (no launcher: this is one process); leave the option out, because the launcher sets the "
                   "number of ranks (mpirun -np N)", 3)),
            ("--rank 1", Names("--rank 1: it is 0 (no launcher", 3)),
            ("--local_rank=x", Names("--local-rank x: give a whole number")),
        ),
        commands=(("ensemble --world-size 4", Names(f"--world-size: {RANKS}")),),
        tests=(
            "cli/test_cli_guides.py::test_numbers_that_a_guide_passes_on_agree_and_nccl_s_time_limit_is_answered_once",
            "cli/test_cli_guides.py::test_one_number_that_disagrees_ends_all_ranks_with_one_line",
        ),
    ),
    Row(
        "PBS, Torque or Slurm meant more ranks than were started",
        starts=(
            ("SLURM_JOB_ID=42 SLURM_NTASKS=4", Names(f"SLURM_NTASKS=4 in Slurm job 42, {_ALONE} srun", 3)),
            ("SLURM_JOB_ID=42 SLURM_NPROCS=4", Names(f"SLURM_NPROCS=4 in Slurm job 42, {_ALONE} srun", 3)),
            ("PBS_JOBID=9 PBS_NODEFILE=four_slots", Names(f"PBS_NODEFILE has 4 slots in job 9, {_ALONE} mpirun", 3)),
            ("PBS_JOBID=9 PBS_NUM_NODES=2 PBS_NUM_PPN=4", Names(f"PBS_NUM_PPN=4 in job 9, {_ALONE} mpirun", 3)),
        ),
    ),
    Row(
        "Torque's `nodes=2:ppn=4:gpus=4`",
        launch=(("--scheduler torque --nodes 2 --gpus-per-node 4", Sets("nodes=2:ppn=4:gpus=4")),),
    ),
    Row(
        "`--debug`: a small data set, one epoch",
        train=(
            ("--debug", Sets("option log_level", "debug")),
            ("--debug", Sets("training.epochs", 1)),
            ("--debug", Sets("data.max_patterns", 512)),
            ("training.epochs=3 --debug", Sets("training.epochs", 3)),
            ("--debug --resume run", Sets("training.epochs", 20)),
        ),
        launch=(
            ("--debug", Sets("#SBATCH --time=00:10:00")),
            ("--debug", Sets("training.epochs=1")),
            ("--debug", Sets("data.max_patterns=512")),
        ),
        commands=(("ensemble --debug", Names("--debug: an option of mpitrain train")),),
        tests=("cli/test_cli_older_habits.py::test_a_debug_run_leaves_the_folder_of_the_run_free",),
    ),
    Row(
        "`data.pin_memory`, `--pin-memory`",
        files=(("data: {pin_memory: true}", Names(_LEAVE_IT_OUT)),),
        train=(("--pin-memory", Names(f"--pin-memory: {_LEAVE_IT_OUT}")),),
        commands=(("ensemble --pin-memory", Names(f"--pin-memory: {_LEAVE_IT_OUT}")),),
    ),
    Row(
        "`--data-type synthetic`, `DATA_TYPE`",
        files=(("data: {data_type: synthetic}", Names("without data.data_path the samples are synthetic")),),
        train=(("--data-type synthetic", Names("--data-type: give data.samples, points or fields")),),
        launch=(("--data-type points", Names("--data-type: give data.samples")),),
        jobs=(("DATA_TYPE=synthetic", Says("DATA_TYPE=synthetic: not read by this script; set data.samples")),),
    ),
    Row(
        "`--config minimal`, `multi_gpu`, `full_dataset`: presets",
        train=(
            ("--config minimal", Names(f"minimal: {_NO_NAMES} `mpitrain train --debug` is a")),
            ("--config multi_gpu", Names("no such file; `mpitrain launch --preset multi_gpu` starts a job of that")),
            ("--config full_dataset", Names(f"full_dataset: {_NO_NAMES} without a file")),
        ),
        launch=(("-n 2 seed=3 multi_gpu", Names("multi_gpu: write --preset multi_gpu")),),
    ),
    Row(
        "`use_multi_gpu`, `distributed_sampler`, `distributed_backend` under `compute`",
        files=(
            ("compute: {use_multi_gpu: true}", Names(RANKS)),
            ("compute: {distributed_sampler: true}", Names("each rank always has its own part of the samples")),
            ("compute: {distributed_backend: gloo}", Sets("compute.backend", "gloo")),
        ),
    ),
    Row(
        "keys at the top of a file, without a section",
        files=(
            ("find_unused_parameters: true", Sets("distributed.find_unused_parameters", True)),
            ("static_graph: true", Sets("distributed.static_graph", True)),
            ("sync_batch_norm: true", Sets("distributed.sync_batch_norm", True)),
            ("bucket_cap_mb: 5", Sets("distributed.bucket_cap_mb", 5.0)),
            ("broadcast_buffers: false", Sets("distributed.broadcast_buffers", False)),
            ("use_amp: true", Sets("training.use_amp", True)),
            ("batch_size: 32", Sets("training.batch_size", 32)),
            ("epochs: 3", Sets("training.epochs", 3)),
            ("gradient_accumulation_steps: 2", Sets("training.gradient_accumulation_steps", 2)),
            ("gradient_checkpointing: true", Sets("training.gradient_checkpointing", True)),
            ("gradient_clip_norm: 1.0", Sets(CLIP, 1.0)),
            ("max_grad_norm: 1.0", Sets(CLIP, 1.0)),
            ("early_stopping_patience: 3", Sets("training.early_stopping_patience", 3)),
            ("save_interval: 2", Sets("training.save_interval", 2)),
            ("deterministic: true", Sets("training.deterministic", True)),
            ("learning_rate: 0.01", Sets(RATE, 0.01)),
            ("hidden_size: 8", Sets("model.hidden_size", 8)),
            ("pole: south", Sets("domain.pole", "south")),
        ),
    ),
    Row(
        "a rank a GPU, from SLURM_GPUS_PER_NODE or the GPUs that are there",
        tests=(
            "launch/test_launch_gpus.py::test_a_rank_a_gpu_follows_the_gpus_that_the_job_got",
            "launch/test_launch_gpus.py::test_a_job_says_which_gpus_no_rank_uses",
        ),
    ),
    Row(
        "`latest` each epoch; `--resume x_latest.pt` of another trainer",
        files=(
            ("save_latest: true", Names(SAVE)),
            ("training: {save_frequency: 1}", Names(SAVE)),
        ),
        train=(("--save-interval 1", Sets("training.save_interval", 1)),),
        tests=(
            "train/test_train_trainer.py::test_checkpoints_every_interval_and_once_at_the_end",
            "train/test_train_trainer.py::test_long_epochs_are_saved_more_often_by_the_clock_of_the_root",
            "cli/test_cli_guides.py::test_the_latest_file_of_another_trainer_is_refused_in_one_line",
        ),
    ),
    Row(
        "NCCL_TIMEOUT exported before mpirun; CONDA_ENV without conda",
        jobs=(
            ("NCCL_TIMEOUT=1800", Sets("distributed.timeout_s=1800")),
            ("NCCL_TIMEOUT=x", Names("NCCL_TIMEOUT=x: not of the form")),
            ("CONDA_ENV=/nowhere", Names("/nowhere/bin/python: not found", 3)),
            ("CONDA_ENV=ours", Names("CONDA_ENV: no conda on the PATH", 3)),
        ),
        tests=(
            "cli/test_cli_guides.py::test_numbers_that_a_guide_passes_on_agree_and_nccl_s_time_limit_is_answered_once",
        ),
    ),
    Row(
        "`launch` with positional words, `--node-rank 0 --master-addr A`",
        launch=(
            ("slurm -n 2", Names("slurm: write --scheduler slurm")),
            ("train.py", Names("train.py: a job runs mpitrain itself; a network of your own is model.name=train.py:")),
            ("everything", Names("everything: a job accepts a file of settings (FILE.yaml)")),
            ("--node-rank 0 --master-addr A", Names(f"--node-rank: {_BY_HAND}")),
            ("--master_addr=A", Names(f"--master-addr: {_BY_HAND}")),
        ),
    ),
    Row(
        "a server on MASTER_PORT",
        tests=("cli/test_cli_guides.py::test_a_server_on_the_port_of_the_ranks_is_the_one_fault_that_is_named",),
    ),
    Row(
        "`use_amp: true` on CPUs",
        runs=(("training.use_amp=true", Says("training.use_amp=true needs autograd: on CPUs a step of a network")),),
        tests=(
            "train/test_train_network_wrapping.py"
            "::test_a_switch_that_makes_small_steps_many_times_slower_says_how_much",
        ),
    ),
    Row(
        "`reproduce ens/members/0003`; that folder's report, statistics and log",
        tests=(
            "ensemble/test_ensemble_runs.py::test_members_differ_and_leave_run_folders",
            "ensemble/test_ensemble_runs.py::test_a_member_is_trained_again_from_its_record",
        ),
    ),
    Row(
        "`bench scaling --data FILE`",
        tests=("cli/test_cli_older_habits.py::test_scaling_takes_a_data_file_as_training_does",),
    ),
)  # fmt: skip


def cases_of(kind: str, *marks: pytest.MarkDecorator) -> list[Any]:
    """The guides' cases of a kind, as parameters of its test; their names begin with the number of the row."""
    cases = [(number, case) for number, row in enumerate(GUIDES, 1) for case in getattr(row, kind)]
    return [pytest.param(*case, id=f"row{number:02d} {case[0]}"[:60], marks=marks) for number, case in cases]
