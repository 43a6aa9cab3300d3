"""Every key and variable that users of other trainers bring along, and what happens with it: a table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mpitrain.config import RunConfig, load_run_config
from mpitrain.config.messages import _known_keys
from mpitrain.config.older.synonyms import INSTEAD, SAME, SECTIONS
from mpitrain.errors import ConfigError
from mpitrain.launch.script_parts import OLDER_VARIABLES, OVERRIDES

RATE = "training.optimizer.learning_rate"
# What stands in the file, the key that it sets, and the value there.
UNDERSTOOD = [
    ("training: {learning_rate: 0.01}", RATE, 0.01),
    ("training: {lr: 0.01}", RATE, 0.01),
    ("learning_rate: 0.01", RATE, 0.01),
    ("train: {learning_rate: 0.01}", RATE, 0.01),
    ("optimizer: {learning_rate: 0.01}", RATE, 0.01),
    ("training: {optimizer: {type: adam, lr: 0.01}}", RATE, 0.01),
    ("training: {optimizer: AdamW, learning_rate: 0.01}", "training.optimizer.type", "adamw"),
    ("training: {optimizer: AdamW, learning_rate: 0.01}", RATE, 0.01),
    ("training: {scheduler: cosine}", "training.scheduler.type", "cosine"),
    ("scheduler: {type: cosine}", "training.scheduler.type", "cosine"),
    ("scheduler: null", "training.scheduler", None),
    ("training: {warmup_epochs: 5}", "training.scheduler.warmup_epochs", 5),
    ("training: {warmup_epochs: 5}", "training.scheduler.type", "none"),
    ("training: {warmup_epochs: 5, scheduler: {type: cosine}}", "training.scheduler.type", "cosine"),
    ("max_grad_norm: 1.0", "training.gradient_clip_norm", 1.0),
    ("training: {max_grad_norm: 1.0}", "training.gradient_clip_norm", 1.0),
    ("distributed_backend: nccl", "compute.backend", "nccl_if_available"),
    ("distributed: {backend: gloo}", "compute.backend", "gloo"),
    ("compute: {backend: nccl}", "compute.backend", "nccl"),
    ("distributed: {timeout: 60}", "distributed.timeout_s", 60),
    ("checkpoint_dir: somewhere", "output.model_dir", "somewhere"),
    ("training: {checkpoint_dir: somewhere}", "output.model_dir", "somewhere"),
    ("output: {output_dir: somewhere}", "output.model_dir", "somewhere"),
    ("training: {num_epochs: 3}", "training.epochs", 3),
    ("training: {max_epochs: 3}", "training.epochs", 3),
    ("training: {accumulate_grad_batches: 2}", "training.gradient_accumulation_steps", 2),
    ("training: {mixed_precision: true}", "training.use_amp", True),
    ("training: {compile: true}", "training.torch_compile", True),
    ("training: {val_split: 0.3}", "data.validation_split", 0.3),
    ("num_workers: 3", "data.num_workers", 3),
    ("training: {seed: 7}", "seed", 7),
    ("model: {hidden_dim: 32}", "model.hidden_size", 32),
    ("device: cpu", "compute.device", "cpu"),
    ("use_cuda: false", "compute.device", "cpu"),
]
# What stands in the file, the key's name, and words of the advice.
NAMED = [
    ("world_size: 4", "world_size", "mpirun -np N"),
    ("training: {world_size: 4}", "training.world_size", "mpirun -np N"),
    ("distributed: {world_size: 4}", "distributed.world_size", "mpirun -np N"),
    ("time_limit: '01:00:00'", "time_limit", "--walltime"),
    ("gpus: 4", "gpus", "--gpus-per-node"),
    ("data: {train_samples: 1000}", "data.train_samples", "data.num_samples"),
    ("data: {val_samples: 100}", "data.val_samples", "data.validation_split"),
    ("data: {data_type: synthetic}", "data.data_type", "data.samples"),
    ("training: {save_every: 5}", "training.save_every", "training.save_interval, in epochs"),
    ("training: {warmup_steps: 5}", "training.warmup_steps", "training.scheduler.warmup_epochs"),
    ("training: {precision: bf16}", "training.precision", "training.amp_dtype"),
    ("training: {gradient_clip: 1}", "training.gradient_clip", "training.gradient_clip_norm"),
    ("resume: run", "resume", "--resume PATH"),
    ("log_level: debug", "log_level", "--log-level"),
]
# What is accepted and has no effect says so in a line.
WITHOUT_EFFECT = [
    ("data: {num_workers: 4}", "data.num_workers=4: of no effect without data.streaming=true"),
    ("data: {num_samples: 9, data_path: a.nc}", "data.num_samples=9: counts synthetic samples"),
    ("training: {min_epochs: 3}", "training.min_epochs=3: of no effect"),
    ("distributed: {sync_batch_norm: true}", "distributed.sync_batch_norm=true: of no effect"),
]
WITH_EFFECT = [
    "data: {num_workers: 4, streaming: true}",
    "data: {num_samples: 9}",
    "training: {min_epochs: 3, early_stopping_patience: 2}",
    "training: {min_epochs: 3, jacobian_tolerance: 0.1}",
    "distributed: {sync_batch_norm: true}\nmodel: {name: mlp, batch_norm: true}",
    "distributed: {sync_batch_norm: true}\nmodel: {name: 'own.module:network'}",
]


def value_at(config: RunConfig, key: str) -> object:
    value: object = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


@pytest.fixture
def run_yaml(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(request.getfixturevalue("text"), encoding="utf-8")
    return path


@pytest.mark.parametrize(("text", "key", "expected"), UNDERSTOOD)
def test_a_key_of_the_same_meaning_is_understood(run_yaml: Path, key: str, expected: object, text: str) -> None:
    assert value_at(load_run_config(run_yaml).config, key) == expected


@pytest.mark.parametrize(("text", "key", "words"), NAMED)
def test_of_a_key_of_another_meaning_the_right_one_is_named(run_yaml: Path, key: str, words: str, text: str) -> None:
    with pytest.raises(ConfigError, match=rf":\d: {re.escape(key)}: unknown key; .*{re.escape(words)}"):
        load_run_config(run_yaml)


@pytest.mark.parametrize(("text", "start"), WITHOUT_EFFECT)
def test_what_has_no_effect_says_so(run_yaml: Path, start: str, text: str) -> None:
    (notice,) = load_run_config(run_yaml).notices
    assert notice.startswith(start)


@pytest.mark.parametrize("text", WITH_EFFECT)
def test_what_has_an_effect_is_not_talked_about(run_yaml: Path, text: str) -> None:
    assert load_run_config(run_yaml).notices == ()


def test_an_override_by_name_keeps_the_rest_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("training: {optimizer: {type: adam, learning_rate: 0.5}}")
    changed = load_run_config(path, ["training.optimizer=sgd"]).config.training.optimizer
    assert (changed.type, changed.learning_rate) == ("sgd", 0.5)
    assert load_run_config(path, ["training.lr=0.1"]).config.training.optimizer.learning_rate == 0.1


@pytest.mark.parametrize("older", sorted(SAME))
def test_a_synonym_is_no_key_of_ours_and_leads_to_one(older: str) -> None:
    known = {".".join(path) for path in _known_keys()}
    assert older not in known
    assert SAME[older] in known


def test_advice_and_sections_are_of_names_that_are_no_keys_of_ours() -> None:
    known = {path[-1] for path in _known_keys()}
    assert not known & set(INSTEAD)
    assert not known & set(SECTIONS) - {"optimizer", "scheduler"}


@pytest.mark.parametrize(
    "name",
    ["EPOCHS", "LR", "BATCH_SIZE", "DATA", "SEED", "BACKEND", "NCCL_TIMEOUT", "CONDA_ENV", "TRAIN_SAMPLES",
     "VAL_SAMPLES", "DATA_TYPE", "GPUS"],
)  # fmt: skip
def test_every_variable_of_job_scripts_is_read_or_answered(name: str) -> None:
    """What a script does with each is shown where scripts are run."""
    assert name in {*(variable for variable, _, _ in OVERRIDES), *OLDER_VARIABLES, "CONDA_ENV"}
