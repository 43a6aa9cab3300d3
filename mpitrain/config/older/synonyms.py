"""Other trainers' names of settings, and advice for names with another meaning. Only data.

A name with exactly the meaning of a current key is read as that key. For other names, the error for the unknown key
names the key or command-line option to use.
"""

from __future__ import annotations

_ROOT_AND_TRAINING = ("", "training.")
_WHERE_TRACKED = ("", "training.", "output.", "logging.")

# Current key, the sections in which other trainers have it, and their names for it.
_ROWS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("seed", ("", "training.", "data."), ("random_seed", "manual_seed")),
    ("seed", ("training.", "data."), ("seed",)),
    ("training.optimizer.learning_rate", _ROOT_AND_TRAINING, ("learning_rate", "lr")),
    ("training.optimizer.learning_rate", ("training.optimizer.",), ("lr",)),
    ("training.optimizer.weight_decay", _ROOT_AND_TRAINING, ("weight_decay",)),
    ("training.scheduler.warmup_epochs", _ROOT_AND_TRAINING, ("warmup_epochs",)),
    ("training.epochs", _ROOT_AND_TRAINING, ("num_epochs", "max_epochs", "n_epochs")),
    ("training.gradient_clip_norm", _ROOT_AND_TRAINING,
     ("max_grad_norm", "grad_clip_norm", "clip_grad_norm", "gradient_clip_val")),
    ("training.gradient_accumulation_steps", _ROOT_AND_TRAINING,
     ("accumulation_steps", "grad_accumulation_steps", "accumulate_grad_batches")),
    ("training.use_amp", _ROOT_AND_TRAINING, ("amp", "mixed_precision")),
    ("training.torch_compile", _ROOT_AND_TRAINING, ("compile", "compile_model", "use_compile")),
    ("training.gradient_checkpointing", _ROOT_AND_TRAINING,
     ("activation_checkpointing", "use_gradient_checkpointing")),
    ("training.scheduler.gamma", ("training.scheduler.",), ("factor",)),
    ("training.loss_function", _ROOT_AND_TRAINING, ("loss", "loss_fn", "criterion")),
    ("training.profile_training", _ROOT_AND_TRAINING, ("profile", "profiler")),
    ("training.log_interval", _ROOT_AND_TRAINING, ("log_every", "log_freq", "log_every_n_steps")),
    ("data.data_path", _ROOT_AND_TRAINING, ("data_path", "data_file")),
    ("data.data_path", ("data.",), ("data_file", "path", "file")),
    ("data.validation_split", ("", "training.", "data."), ("val_split", "validation_fraction", "val_fraction")),
    ("data.validation_split", _ROOT_AND_TRAINING, ("validation_split",)),
    ("data.num_workers", _ROOT_AND_TRAINING, ("num_workers",)),
    ("output.model_dir", ("", "training.", "output."), ("checkpoint_dir", "output_dir", "save_dir")),
    ("output.model_dir", _ROOT_AND_TRAINING, ("model_dir",)),
    ("compute.device", _ROOT_AND_TRAINING, ("device",)),
    ("compute.backend", ("", "training.", "distributed.", "compute."), ("distributed_backend", "dist_backend")),
    ("compute.backend", ("", "training.", "distributed."), ("backend",)),
    ("distributed.timeout_s", ("", "training.", "distributed."), ("distributed_timeout", "dist_timeout")),
    ("distributed.timeout_s", ("distributed.",), ("timeout",)),
    ("tracking.wandb", _WHERE_TRACKED, ("use_wandb", "wandb")),
    ("tracking.wandb_project", _WHERE_TRACKED, ("wandb_project",)),
    ("tracking.wandb_entity", _WHERE_TRACKED, ("wandb_entity",)),
    ("tracking.wandb_name", _WHERE_TRACKED, ("wandb_name", "wandb_run_name")),
    ("tracking.wandb_name", ("tracking.",), ("wandb_run_name",)),
    ("tracking.wandb", ("wandb.", "logging.wandb."), ("enabled", "use")),
    *((f"tracking.wandb_{name}", ("wandb.", "logging.wandb."), (name,))
      for name in ("project", "entity", "name", "tags", "mode")),
    ("tracking.wandb_tags", _WHERE_TRACKED, ("wandb_tags",)),
    ("tracking.wandb_mode", _WHERE_TRACKED, ("wandb_mode",)),
    ("tracking.tensorboard", _WHERE_TRACKED, ("use_tensorboard", "tensorboard")),
    ("tracking.mlflow", _WHERE_TRACKED, ("use_mlflow", "mlflow")),
    ("tracking.mlflow_uri", _WHERE_TRACKED, ("mlflow_uri", "mlflow_tracking_uri")),
    ("tracking.mlflow_experiment", _WHERE_TRACKED, ("mlflow_experiment", "mlflow_experiment_name")),
    ("model.input_size", ("model.",), ("input_dim", "in_features", "num_inputs")),
    ("model.output_size", ("model.",), ("output_dim", "out_features", "num_outputs")),
    ("model.hidden_size", ("", "model."), ("hidden_dim", "hidden_units", "hidden_features")),
    ("model.hidden_layers", ("model.",), ("num_hidden_layers", "n_hidden_layers")),
    ("model.hidden_activation", ("model.",), ("activation",)),
)  # fmt: skip

SAME: dict[str, str] = {
    f"{section}{name}": key for key, sections, names in _ROWS for section in sections for name in names
}
"""Current keys by other trainers' dotted keys, with `train.` written as `training.`."""

SECTIONS: dict[str, str] = {"train": "training", "optimizer": "training.optimizer", "scheduler": "training.scheduler"}
"""Current sections by other trainers' sections."""

_NUMBER_OF_RANKS = "the launcher sets the number of ranks: mpirun -np N, srun -n N, or `mpitrain launch --ntasks N`"
_OF_THE_JOB = "it belongs to the job, not to the run: `mpitrain launch`"
_SAMPLES = (
    "give data.num_samples (total number of synthetic samples) or data.max_patterns (maximum number from files), and "
    "data.validation_split (the fraction held out)"
)
_SAVE = "give training.save_interval, in epochs"
_CLIP = "give training.gradient_clip_norm, the maximum norm of the gradient of all parameters together"
_PRECISION = "give training.use_amp=true with training.amp_dtype, or training.dtype"
_STRATEGIES = "give distributed.strategy: every rank holds the whole network, sharding is not supported"
_MEETING = "the launcher sets it; for ranks started by hand it is an environment variable"

_ADVICE: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        _NUMBER_OF_RANKS,
        ("use_multi_gpu", "multi_gpu", "use_ddp", "world_size", "num_ranks", "num_processes", "nprocs", "nproc", "np"),
    ),
    (f"{_OF_THE_JOB} --nodes N", ("num_nodes", "nodes", "nnodes")),
    (f"{_OF_THE_JOB} --gpus-per-node N", ("gpus", "num_gpus", "gpus_per_node")),
    (f"{_OF_THE_JOB} --tasks-per-node N", ("nproc_per_node", "ntasks_per_node", "tasks_per_node")),
    (f"{_OF_THE_JOB} --walltime HH:MM:SS", ("time_limit", "walltime")),
    (f"{_OF_THE_JOB} --partition NAME", ("partition", "queue")),
    (_SAMPLES, ("train_samples", "val_samples", "num_train_samples", "num_val_samples", "test_samples")),
    ("give data.samples, points or fields; without data.data_path the samples are synthetic", ("data_type",)),
    (
        "leave it out, it cannot be chosen here",
        ("pin_memory", "persistent_workers", "prefetch_factor", "non_blocking", "cudnn_benchmark", "init_method"),
    ),
    ("leave it out: the last batch of an epoch is always used, also if it is smaller", ("drop_last",)),
    (_STRATEGIES, ("use_fsdp", "fsdp", "fsdp_config", "deepspeed", "zero_stage")),
    (
        "leave it out: each rank always has its own part of the samples",
        ("distributed_sampler", "use_distributed_sampler"),
    ),
    (
        _SAVE,
        (
            "save_every",
            "save_freq",
            "save_frequency",
            "save_latest",
            "checkpoint_interval",
            "checkpoint_every",
            "checkpoint_freq",
            "checkpoint_frequency",
        ),
    ),
    (f"{_SAVE}; checkpoints are in output.model_dir", ("checkpoint", "checkpoints", "checkpointing")),
    (_CLIP, ("gradient_clip", "grad_clip", "clip_value", "gradient_clipping")),
    ("give training.scheduler.warmup_epochs, in epochs", ("warmup_steps", "warmup")),
    (_PRECISION, ("precision", "fp16", "bf16", "half")),
    ("give training.loss_function of your own, such as my_losses:Smooth (mpitrain help extend)", ("regularization",)),
    ("give training.average={decay: 0.999}, a moving average of the weights", ("use_ema", "ema_decay", "ema")),
    (
        "give model.name of your own, such as my_networks:Columns (mpitrain help extend), or use_conv1d=false",
        ("use_conv1d", "conv_channels", "conv_kernel_size"),
    ),
    (_MEETING, ("rank", "local_rank", "node_rank", "master_addr", "master_port")),
    (
        "it is a command-line option: --resume PATH",
        ("resume", "resume_from", "resume_from_checkpoint", "load_checkpoint"),
    ),
    ("it is a command-line option: --log-level LEVEL", ("log_level", "debug", "verbose", "logging_level")),
)

INSTEAD: dict[str, str] = {name: advice for advice, names in _ADVICE for name in names}
"""Advice by other trainers' names, in any section, that have no equal here."""

NEAREST: dict[str, str] = {
    "lr": "training.optimizer.learning_rate",
    "min_lr": "training.scheduler.min_learning_rate",
    "batch": "training.batch_size",
    "train_batch_size": "training.batch_size",
    "per_device_batch_size": "training.batch_size",
    "patience": "training.early_stopping_patience",
    "betas": "training.optimizer.beta1",
    "eps": "training.optimizer.epsilon",
    "num_layers": "model.hidden_layers",
    "dropout_rate": "model.dropout",
    "model_name": "model.name",
    "data_dir": "data.data_path",
    "dataset": "data.data_path",
    "use_gpu": "compute.device",
    "cuda": "compute.device",
    "gpu": "compute.device",
    "project": "tracking.wandb_project",
    "steps": "training.max_steps",
    "num_steps": "training.max_steps",
    "total_steps": "training.max_steps",
    "timeout": "distributed.timeout_s",
    "tf32": "training.allow_tf32",
}
"""Keys to suggest, by other trainers' names with a similar meaning that are not read."""

_JOB = "`mpitrain launch --preset {}` starts a job of that kind; the settings of a run are a YAML file"
NAMED_SETTINGS: dict[str, str] = {
    **dict.fromkeys(
        ("minimal", "debug", "quick", "small", "test"),
        "there are no named settings here; `mpitrain train --debug` is a short run on few samples",
    ),
    **dict.fromkeys(
        ("default", "base", "full", "full_dataset", "production"),
        "there are no named settings here; without a file the defaults and all samples of --data FILE are used",
    ),
    **{name: _JOB.format(name) for name in ("single_gpu", "multi_gpu", "multi_node", "cpu_cluster")},
    **dict.fromkeys(("distributed", "ddp"), _JOB.format("multi_node")),
}
"""Advice by other trainers' names of predefined settings, if one is given instead of a file."""
