"""Words of other trainers: how they go together with this one's. What happens with each is in `older_habits`."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpitrain.config import load_run_config
from mpitrain.config.messages import known_keys
from mpitrain.config.model import is_ice_concentration
from mpitrain.config.older.spellings import current_path
from mpitrain.config.older.synonyms import INSTEAD, SAME, SECTIONS
from mpitrain.launch.inside.settings import OLDER_VARIABLES, OVERRIDES

WITH_EFFECT = [
    "data: {num_workers: 4, streaming: true}",
    "data: {num_samples: 9}",
    "training: {min_epochs: 3, early_stopping_patience: 2}",
    "training: {min_epochs: 3, jacobian_tolerance: 0.1}",
    "distributed: {sync_batch_norm: true}\nmodel: {name: mlp, batch_norm: true}",
    "distributed: {sync_batch_norm: true}\nmodel: {name: 'own.module:network'}",
    "data: {shuffle_buffer_samples: 9, streaming: true}",
    "data: {split: time}",
    "data: {split: time, folds: 3}",
    "training: {early_stopping_patience: 2}",
    "training: {early_stopping_patience: 2, jacobian_tolerance: 0.1}\ndata: {validation_split: 0}",
    "training: {use_amp: true, amp_dtype: float16}",
    "training: {learning_rate_scaling: sqrt, learning_rate_scaling_by: world_size}",
    "training: {jacobian_freq: 2, jacobian_tolerance: 0.1}",
    "training: {optimizer: {type: sgd, momentum: 0.9}}",
    "training: {optimizer: {type: adamw, beta1: 0.8, beta2: 0.9, epsilon: 0.1}}",
    "training: {scheduler: {type: step, step_size: 3, gamma: 0.1}}",
    "training: {scheduler: {type: plateau, patience: 3, gamma: 0.1, min_learning_rate: 1e-5}}",
    "training: {scheduler: {type: cosine, min_learning_rate: 1e-5, warmup_epochs: 3}}",
    "output: {weights: best}",
    "semantics: reference\noutput: {weights: final}",
]


@pytest.fixture
def run_yaml(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(request.getfixturevalue("text"), encoding="utf-8")
    return path


@pytest.mark.parametrize("text", WITH_EFFECT)
def test_what_has_an_effect_is_not_talked_about(run_yaml: Path, text: str) -> None:
    assert load_run_config(run_yaml).notices == ()


def test_an_override_by_name_keeps_the_rest_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("training: {optimizer: {type: adam, learning_rate: 0.5}}")
    changed = load_run_config(path, ["training.optimizer=sgd"]).config.training.optimizer
    assert (changed.type, changed.learning_rate) == ("sgd", 0.5)
    assert load_run_config(path, ["training.lr=0.1"]).config.training.optimizer.learning_rate == 0.1
    whole = load_run_config(path, ["training.optimizer={type: sgd}"]).config.training.optimizer
    assert (whole.type, whole.learning_rate) == ("sgd", 0.001)


@pytest.mark.parametrize(
    ("overrides", "options"),
    [
        ([], {"alpha": 0.9}),
        (["training.optimizer.type=torch.optim:RMSprop"], {"alpha": 0.9}),
        (["training.optimizer=torch.optim:NAdam"], {}),
        (["training.optimizer.type=torch.optim:NAdam"], {}),
        (["training.optimizer.options={eps: 0.1}", "training.optimizer=torch.optim:NAdam"], {"eps": 0.1}),
    ],
)
def test_options_are_those_of_the_code_beside_which_they_stand(
    tmp_path: Path, overrides: list[str], options: dict[str, float]
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("training: {optimizer: {type: 'torch.optim:RMSprop', learning_rate: 0.5, options: {alpha: 0.9}}}")
    optimizer = load_run_config(path, overrides).config.training.optimizer
    assert (optimizer.options, optimizer.learning_rate) == (options, 0.5)


@pytest.mark.parametrize("older", sorted(SAME))
def test_a_synonym_is_no_key_of_ours_and_leads_to_one(older: str) -> None:
    known = {".".join(path) for path in known_keys()}
    assert older not in known
    assert SAME[older] in known


def test_advice_and_sections_are_of_names_that_are_no_keys_of_ours() -> None:
    known = {path[-1] for path in known_keys()}
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


@pytest.mark.parametrize(
    ("name", "is_it"),
    [("aice_d", True), ("sea_ice_area_fraction", True), ("group/aice_h", True), ("sea_ice_thickness", False)],
)
def test_names_of_the_ice_concentration(name: str, is_it: bool) -> None:
    assert is_ice_concentration(name) == is_it


def test_a_key_that_one_section_alone_has_is_found_without_it() -> None:
    assert current_path(("hidden_activation",)) == ("model", "hidden_activation")
