"""Loading: the older files unchanged, overrides over the file, notices, and what some settings imply."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mpitrain.config import LoadedConfig, RunConfig, load_run_config, render_yaml
from mpitrain.errors import ConfigError

OLDER_CONFIGS = Path(__file__).parents[1] / "data" / "older_configs"
OLDER_NAMES = ["distributed", "emulator_large", "ffnn_cpp", "icenet_hpc", "icenet_quick"]


def load_text(folder: Path, text: str, *overrides: str) -> LoadedConfig:
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return load_run_config(path, overrides)


def test_without_a_file_all_are_defaults() -> None:
    assert load_run_config(None, []) == LoadedConfig(RunConfig(), ())


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "---\n", "null\n", "{}\n", "training:\n", "training:\n  optimizer:\n", "\ufeff"]
)
def test_an_empty_file_or_section_means_defaults(tmp_path: Path, text: str) -> None:
    assert load_text(tmp_path, text).config == RunConfig()


def test_every_older_file_is_here() -> None:
    assert sorted(path.stem for path in OLDER_CONFIGS.iterdir()) == OLDER_NAMES


@pytest.mark.parametrize("name", OLDER_NAMES)
def test_an_older_file_loads_and_its_resolved_form_is_equal(name: str, tmp_path: Path) -> None:
    config = load_run_config(OLDER_CONFIGS / f"{name}.yaml", ()).config
    assert load_text(tmp_path, render_yaml(config)).config == config
    assert config != RunConfig()


def test_the_notices_of_distributed_yaml() -> None:
    loaded = load_run_config(OLDER_CONFIGS / "distributed.yaml", ())
    assert loaded.notices == (
        "distributed.strategy=ddp: implies training.reduction=any: results are equal to rounding only",
        "distributed.sync_batch_norm=true: has no effect because the network has no batch norm (model.batch_norm)",
    )
    assert loaded.config.training.batch_size == 2
    assert loaded.config.training.reduction == "any"
    assert loaded.config.compute.backend == "nccl_if_available"
    assert loaded.config.distributed.timeout_s == 3600


def test_the_cpp_file_selects_reference() -> None:
    loaded = load_run_config(OLDER_CONFIGS / "ffnn_cpp.yaml", ())
    assert loaded.notices == (
        "training.batch size=64: ignored, as in the C++ program: each epoch is one full-batch step",
        "semantics=reference: implied by ffnn.inputSize, a key of the C++ program; set semantics to choose",
    )
    config = loaded.config
    assert (config.semantics, config.training.epochs, config.training.batch_size) == ("reference", 200, None)
    assert (config.data.data_path, config.output.model_file) == ("cice_history.nc", "arctic.pt")


def test_the_emulator_keeps_its_variables() -> None:
    config = load_run_config(OLDER_CONFIGS / "emulator_large.yaml", ()).config
    assert config.variables.input_variables is not None
    assert len(config.variables.input_variables) == 14
    assert (config.training.scheduler, config.compute.device, config.model.hidden_layers) == (None, "auto", 3)


@pytest.mark.parametrize(
    ("text", "overrides", "key", "expected"),
    [
        ("training: {epochs: 5}", ["training.epochs=50"], "training.epochs", 50),
        ("training: {epochs: 5}", ["training.epochs=50", "training.epochs=6"], "training.epochs", 6),
        ("train: {epochs: 5}", ["training.epochs=50"], "training.epochs", 50),
        ("training: {epochs: 5}", ["train.epochs=50"], "training.epochs", 50),
        ("use_cuda: true", ["compute.device=cuda"], "compute.device", "cuda"),
        ("compute: {device: cuda}", ["use_cuda=off"], "compute.device", "cpu"),
        ("", ["training.optimizer.learning_rate=1e-4"], "training.optimizer.learning_rate", 1e-4),
        ("training: {scheduler: {type: step}}", ["training.scheduler=null"], "training.scheduler", None),
        ("training: {scheduler: null}", ["training.scheduler.type=cosine"], "training.scheduler.type", "cosine"),
        ("training: {optimizer: {beta1: 0.5}}", ["training.optimizer={beta2: 0.5}"], "training.optimizer.beta1", 0.9),
        ("training: {batch_size: 3}", ["training.global_batch_size=full"], "training.batch_size", None),
        ("training: {global_batch_size: 3}", ["train.batch_size=4"], "training.global_batch_size", None),
        ("training: {batch_size: 3}", ["training.global_batch_size=null"], "training.batch_size", 3),
        ("ffnn: {hiddenSize: 3}", ["model.hidden_size=4"], "semantics", "reference"),
        ("ffnn: {hiddenSize: 3}", ["semantics=standard"], "semantics", "standard"),
        ("training: {batch size: 3}", [], "semantics", "reference"),
        ("", ["data.data_path='a=b: #c'"], "data.data_path", "a=b: #c"),
        ("data: {data_path: a.nc}", ["data.data_path=null"], "data.data_path", None),
        ("training: {optimizer: &o {beta1: 0.5, <<: {beta1: 0.4, beta2: 0.4}}}", [], "training.optimizer.beta2", 0.4),
        ("training: {optimizer: {beta1: 0.5, <<: {beta1: 0.4, beta2: 0.4}}}", [], "training.optimizer.beta1", 0.5),
    ],
)
def test_overrides(tmp_path: Path, text: str, overrides: list[str], key: str, expected: object) -> None:
    value: object = load_text(tmp_path, text, *overrides).config
    for name in key.split("."):
        value = getattr(value, name)
    assert value == expected


@pytest.mark.parametrize("override", ["data.data_path=", "training.epochs= ", "output.model_dir="])
def test_an_override_without_a_value_is_refused(tmp_path: Path, override: str) -> None:
    with pytest.raises(
        ConfigError, match=f"no value, perhaps from an unset variable; to set null write {override.strip()}null"
    ):
        load_text(tmp_path, "", override)


def test_more_layers_than_can_be_computed_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="hidden_layers"):
        load_text(tmp_path, "", "model.name=mlp", "model.hidden_layers=1000000000")


@pytest.mark.parametrize("setting", ["strategy: dp", "strategy: ddp", "fp16_allreduce: true"])
def test_a_resolved_reduction_is_said_once(tmp_path: Path, setting: str) -> None:
    loaded = load_text(tmp_path, f"distributed: {{{setting}}}")
    assert loaded.config.training.reduction == "any"
    implied = [notice for notice in loaded.notices if "implies" in notice]
    assert len(implied) == 1
    again = load_text(tmp_path, render_yaml(loaded.config))
    assert again.config == loaded.config
    assert not any("implies" in notice for notice in again.notices)


def test_reference_reads_nccl_if_available_as_auto(tmp_path: Path) -> None:
    loaded = load_text(tmp_path, "semantics: reference\ndistributed: {backend: nccl, strategy: ddp}")
    assert (loaded.config.compute.backend, loaded.config.training.reduction) == ("auto", None)
    assert "compute.backend=nccl_if_available: semantics reference needs MPI; replaced by auto" in loaded.notices


def test_importing_needs_nothing_heavy() -> None:
    code = "import sys, mpitrain.config; print(sorted({'torch', 'numpy', 'mpi4py', 'netCDF4'} & set(sys.modules)))"
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]"


def test_a_section_where_semantics_belongs_is_not_dropped(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=":1: semantics: a mapping; give one of standard, reference"):
        load_text(tmp_path, "semantics: {a: 1}\nffnn: {hiddenSize: 3}")


def test_coordinates_that_are_named_are_known_by_what_they_are() -> None:
    words = ["data.coordinates.latitude=TLAT", "data.coordinates.time=date"]
    assert load_run_config(None, words).config.data.named_coordinates == {"lat": "TLAT", "time": "date"}
    assert load_run_config(None, []).config.data.named_coordinates == {}


def test_settings_within_a_list_keep_their_order(tmp_path: Path) -> None:
    text = "data: {reader: {type: 'my:read', options: {parts: [{to: 2, from: 1}]}}}"
    written = yaml.safe_load(render_yaml(load_text(tmp_path, text).config))
    (part,) = written["data"]["reader"]["options"]["parts"]
    assert list(part) == ["to", "from"]
