"""What users of five other trainers bring along, key by key, flag by flag, variable by variable, and what happens now.

A row is where it stands, what is given, and the outcome:

* `Sets`: it takes effect, and is seen there;
* `Says`: it is taken, has no effect, and one line says so;
* `Names`: it is refused, in one line that names what to use.
"""

from __future__ import annotations

from dataclasses import dataclass


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
    """Words of the line that names what to use."""

    words: str


Outcome = Sets | Says | Names
RATE, CLIP, WARM_UP = (
    "training.optimizer.learning_rate",
    "training.gradient_clip_norm",
    "training.scheduler.warmup_epochs",
)
RANKS, PER_NODE = "the number of ranks is the launcher's: mpirun -np N", "`mpitrain launch` --gpus-per-node"
SAMPLES, SAVE = "data.num_samples", "training.save_interval, in epochs"

IN_FILES: tuple[tuple[str, Outcome], ...] = (
    ("training: {learning_rate: 0.01}", Sets(RATE, 0.01)),
    ("training: {lr: 0.01}", Sets(RATE, 0.01)),
    ("learning_rate: 0.01", Sets(RATE, 0.01)),
    ("train: {learning_rate: 0.01}", Sets(RATE, 0.01)),
    ("optimizer: {learning_rate: 0.01}", Sets(RATE, 0.01)),
    ("training: {optimizer: {type: adam, lr: 0.01}}", Sets(RATE, 0.01)),
    ("training: {optimizer: AdamW, learning_rate: 0.01}", Sets("training.optimizer.type", "adamw")),
    ("training: {optimizer: AdamW, learning_rate: 0.01}", Sets(RATE, 0.01)),
    ("training: {weight_decay: 1e-5}", Sets("training.optimizer.weight_decay", 1e-5)),
    ("training: {scheduler: cosine}", Sets("training.scheduler.type", "cosine")),
    ("scheduler: {type: cosine}", Sets("training.scheduler.type", "cosine")),
    ("scheduler: null", Sets("training.scheduler", None)),
    ("training: {warmup_epochs: 5}", Sets(WARM_UP, 5)),
    ("training: {warmup_epochs: 5}", Sets("training.scheduler.type", "none")),
    ("training: {warmup_epochs: 5, scheduler: {type: cosine}}", Sets("training.scheduler.type", "cosine")),
    ("max_grad_norm: 1.0", Sets(CLIP, 1.0)),
    ("training: {max_grad_norm: 1.0}", Sets(CLIP, 1.0)),
    ("training: {gradient_clip_val: 1.0}", Sets(CLIP, 1.0)),
    ("distributed_backend: nccl", Sets("compute.backend", "nccl_if_available")),
    ("distributed: {backend: gloo}", Sets("compute.backend", "gloo")),
    ("compute: {backend: nccl}", Sets("compute.backend", "nccl")),
    ("distributed: {timeout: 60}", Sets("distributed.timeout_s", 60.0)),
    ("checkpoint_dir: somewhere", Sets("output.model_dir", "somewhere")),
    ("training: {checkpoint_dir: somewhere}", Sets("output.model_dir", "somewhere")),
    ("output: {output_dir: somewhere}", Sets("output.model_dir", "somewhere")),
    ("training: {num_epochs: 3}", Sets("training.epochs", 3)),
    ("training: {max_epochs: 3}", Sets("training.epochs", 3)),
    ("training: {accumulate_grad_batches: 2}", Sets("training.gradient_accumulation_steps", 2)),
    ("training: {mixed_precision: true}", Sets("training.use_amp", True)),
    ("training: {compile: true}", Sets("training.torch_compile", True)),
    ("training: {val_split: 0.3}", Sets("data.validation_split", 0.3)),
    ("num_workers: 3", Sets("data.num_workers", 3)),
    ("training: {seed: 7}", Sets("seed", 7)),
    ("model: {hidden_dim: 32}", Sets("model.hidden_size", 32)),
    ("device: cpu", Sets("compute.device", "cpu")),
    ("use_cuda: false", Sets("compute.device", "cpu")),
    ("world_size: 4", Names(RANKS)),
    ("training: {world_size: 4}", Names(RANKS)),
    ("distributed: {world_size: 4}", Names(RANKS)),
    ("time_limit: '01:00:00'", Names("--walltime")),
    ("gpus: 4", Names("--gpus-per-node")),
    ("data: {train_samples: 1000}", Names(SAMPLES)),
    ("data: {val_samples: 100}", Names("data.validation_split")),
    ("data: {data_type: synthetic}", Names("data.samples")),
    ("training: {save_every: 5}", Names(SAVE)),
    ("training: {warmup_steps: 5}", Names("training.scheduler.warmup_epochs")),
    ("training: {precision: bf16}", Names("training.amp_dtype")),
    ("training: {gradient_clip: 1}", Names(CLIP)),
    ("resume: run", Names("--resume PATH")),
    ("log_level: debug", Names("--log-level")),
    ("data: {num_workers: 4}", Says("data.num_workers=4: of no effect without data.streaming=true")),
    ("data: {num_samples: 9, data_path: a.nc}", Says("data.num_samples=9: counts synthetic samples")),
    ("training: {min_epochs: 3}", Says("training.min_epochs=3: of no effect")),
    ("distributed: {sync_batch_norm: true}", Says("distributed.sync_batch_norm=true: of no effect")),
    ("data: {shuffle_buffer_samples: 9}", Says("data.shuffle_buffer_samples=9: of no effect")),
    ("data: {area_variable: areacello}", Says("data.area_variable=areacello: of no effect")),
    ("data: {validation_split: 0, split: time}", Says("data.split=time: of no effect")),
    ("data: {validation_path: held_out.nc, split: time}", Says("data.split=time: of no effect")),
    ("data: {validation_split: 0}\ntraining: {early_stopping_patience: 3}",
     Says("training.early_stopping_patience=3: of no effect, for nothing is held out")),
    ("training: {amp_dtype: float16}", Says("training.amp_dtype=float16: of no effect")),
    ("training: {learning_rate_scaling_by: world_size}", Says("training.learning_rate_scaling_by=world_size: of no")),
    ("training: {jacobian_freq: 2}", Says("training.jacobian_freq=2: of no effect")),
    ("training: {optimizer: {momentum: 0.9}}", Says("training.optimizer.momentum=0.9: of no effect")),
    ("training: {optimizer: {type: sgd, beta1: 0.8}}", Says("training.optimizer.beta1=0.8: of no effect")),
    ("training: {optimizer: {type: sgd, beta2: 0.8}}", Says("training.optimizer.beta2=0.8: of no effect")),
    ("training: {optimizer: {type: sgd, epsilon: 0.1}}", Says("training.optimizer.epsilon=0.1: of no effect")),
    ("training: {scheduler: {type: cosine, step_size: 3}}", Says("training.scheduler.step_size=3: of no effect")),
    ("training: {scheduler: {type: cosine, gamma: 0.1}}", Says("training.scheduler.gamma=0.1: of no effect")),
    ("training: {scheduler: {type: cosine, patience: 3}}", Says("training.scheduler.patience=3: of no effect")),
    ("training: {scheduler: {type: step, min_learning_rate: 1e-5}}",
     Says("training.scheduler.min_learning_rate=1e-05: of no effect")),
    ("data: {validation_split: 0}\noutput: {weights: best}", Says("output.weights=best: of no effect")),
)  # fmt: skip

OF_TRAIN: tuple[tuple[str, Outcome], ...] = (
    ("--config run.yaml", Sets("seed", 11)),
    ("-c run.yaml", Sets("seed", 11)),
    ("--config=run.yaml", Sets("seed", 11)),
    ("run.yaml", Sets("seed", 11)),
    ("training.epochs=3 run.yaml", Sets("seed", 11)),
    ("run.yaml --epochs 3 seed=5", Sets("seed", 5)),
    ("--learning-rate 0.1", Sets(RATE, 0.1)),
    ("--learning_rate=0.1", Sets(RATE, 0.1)),
    ("--num-workers 3 data.streaming=true", Sets("data.num_workers", 3)),
    ("--num_workers 3", Says("data.num_workers=3: of no effect")),
    ("--gradient-checkpointing", Sets("training.gradient_checkpointing", True)),
    ("--no-compile", Sets("training.torch_compile", False)),
    ("--compile", Sets("training.torch_compile", True)),
    ("--output_dir run", Sets("output.model_dir", "run")),
    ("--checkpoint-dir run", Sets("output.model_dir", "run")),
    ("--log_level debug", Sets("option log_level", "debug")),
    ("--log-level DEBUG", Sets("option log_level", "debug")),
    ("--debug", Sets("option log_level", "debug")),
    ("--backend nccl", Sets("compute.backend", "nccl_if_available")),
    ("--backend gloo", Sets("compute.backend", "gloo")),
    ("--batch_size 3", Sets("training.batch_size", 3)),
    ("--max-grad-norm 1", Sets(CLIP, 1.0)),
    ("--warmup-epochs 3", Sets(WARM_UP, 3)),
    ("--fp16", Sets("training.amp_dtype", "float16")),
    ("--amp", Sets("training.use_amp", True)),
    ("--no-cuda", Sets("compute.device", "cpu")),
    ("--seed 3", Sets("seed", 3)),
    ("--profile", Sets("training.profile_training", True)),
    ("--resume-from run", Sets("option resume_from", "run")),
    ("--resume checkpoints/step-3", Sets("option resume_from", "checkpoints/step-3")),
    ("--world-size 4", Names(f"--world-size: no flag of train; {RANKS}")),
    ("--time-limit 1", Names("--time-limit: no flag of train; it belongs to the job, not to the run: ")),
    ("--train-samples 9", Names(f"--train-samples: no flag of train; give {SAMPLES}")),
    ("--val_samples=9", Names("data.validation_split")),
    ("--data-type synthetic", Names("--data-type: no flag of train; give data.samples")),
    ("--nproc-per-node 2", Names("--tasks-per-node")),
    ("--num-workers", Names("--num-workers: needs a value")),
    ("--num-workers --debug", Names("--num-workers: needs a value")),
)

# Of the script that is written: a line that it holds.
OF_LAUNCH: tuple[tuple[str, Outcome], ...] = (
    ("--time-limit 02:00:00", Sets("#SBATCH --time=02:00:00")),
    ("--time_limit=02:00:00", Sets("#SBATCH --time=02:00:00")),
    ("--nproc_per_node 2", Sets("#SBATCH --ntasks-per-node=2")),
    ("--world-size 5 --nodes 2 --tasks-per-node 3", Sets("#SBATCH --ntasks=5")),
    ("--num-nodes 2", Sets("#SBATCH --nodes=2")),
    ("--gpus 1", Sets("#SBATCH --gpus-per-node=1")),
    ("--debug", Sets("#SBATCH --time=00:10:00")),
    ("--dry-run", Sets("#SBATCH --nodes=1")),
    ("--epochs 3", Sets("command+=(training.epochs=3)")),
    ("--num-workers 3", Sets("command+=(data.num_workers=3)")),
    ("--learning-rate 0.1", Sets(f"command+=({RATE}=0.1)")),
    ("-c run.yaml", Sets("command+=(run.yaml)")),
    ("training.epochs=3 --nodes 2 run.yaml", Sets("command+=(run.yaml)")),
    ("--log_level DEBUG", Sets("log_level=${LOG_LEVEL:-debug}")),
    ("--train-samples 9", Names(f"--train-samples: no flag of launch; give {SAMPLES}")),
    ("--data-type points", Names("--data-type: no flag of launch; give data.samples")),
)

# Of job scripts: a word that the training gets.
OF_JOBS: tuple[tuple[str, Outcome], ...] = (
    ("EPOCHS=3", Sets("training.epochs=3")),
    ("LR=1e-4", Sets(f"{RATE}=1e-4")),
    ("BATCH_SIZE=32", Sets("training.batch_size=32")),
    ("DATA=a.nc", Sets("data.data_path=a.nc")),
    ("SEED=5", Sets("seed=5")),
    ("BACKEND=gloo", Sets("compute.backend=gloo")),
    ("NCCL_TIMEOUT=1800", Sets("distributed.timeout_s=1800")),
    ("LOG_LEVEL=debug", Sets("debug")),
    ("LOG_LEVEL=DEBUG", Sets("DEBUG")),
    ("RESUME=1", Sets("--resume")),
    ("TRAIN_SAMPLES=1000", Says("TRAIN_SAMPLES=1000: not read by this script; set data.num_samples")),
    ("VAL_SAMPLES=100", Says("VAL_SAMPLES=100: not read by this script; set data.validation_split")),
    ("DATA_TYPE=synthetic", Says("DATA_TYPE=synthetic: not read by this script; set data.samples")),
    ("GPUS=4", Says("GPUS=4: not read by this script; write the script with --gpus-per-node")),
    ("NCCL_TIMEOUT=x", Names("NCCL_TIMEOUT=x: not of the form")),
    ("CONDA_ENV=/nowhere", Names("/nowhere/bin/python: not found")),
)

# Only the devices, the engine or the network can tell: said when the run begins.
OF_RUNS: tuple[tuple[str, Outcome], ...] = (
    ("training.log_gpu_memory=true", Says("training.log_gpu_memory=true: of no effect, this run is on CPUs")),
    ("training.allow_tf32=true", Says("training.allow_tf32=true: of no effect, this run is on CPUs")),
    ("data.shared_memory=true", Says("data.shared_memory: each sample is held on one rank")),
    ("distributed.bucket_cap_mb=5", Says("distributed.bucket_cap_mb=5.0: an option of DistributedDataParallel, of no")),
    ("distributed.static_graph=true", Says("distributed.static_graph=true: an option of DistributedDataParallel")),
    ("compute.instruction_set=x86-64-v2", Says("compute.instruction_set=x86-64-v2: of no effect, training.engine=")),
    ("ensemble={members: 3}", Says("ensemble: of no effect in a single run")),
)
