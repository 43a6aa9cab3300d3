"""Bad input, and the exact line that it gives; `@` stands for the file's name."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpitrain.config import load_run_config, render_yaml
from mpitrain.errors import ConfigError, LaunchError

OLDER_FILES = sorted((Path(__file__).parents[1] / "data" / "older_configs").iterdir())
PIECES = st.text(max_size=3) | st.sampled_from(
    ["\n", "\n  ", ": ", "- ", "{", "[", "&a ", "*a", "<<: ", "!!str ", "off", "\t"]
)
REFERENCE = "semantics reference has no such option"
COLUMNS = "start the keys of a section in the same column, further right than the section's name"
SECTION_NAMES = (
    "semantics, seed, model, variables, domain, data, training, compute, distributed, prediction, output, ensemble, "
    "tracking"
)

BAD_FILES = [
    # unknown names
    ("training:\n  epoch: 5", "@:2: training.epoch: unknown key; did you mean 'epochs'?"),
    ("train:\n  epoch: 5", "@:2: train.epoch: unknown key; did you mean 'epochs'?"),
    ("trainin:\n  epochs: 5", "@:1: trainin: unknown section; did you mean 'training'?"),
    ("\nzzz: 5", f"@:2: zzz: unknown key; allowed: {SECTION_NAMES}"),
    ("hiden_size: 3", "@:1: hiden_size: unknown key; did you mean 'model.hidden_size'?"),
    ("model: {lr: 3}", "@:1: model.lr: unknown key; did you mean 'training.optimizer.learning_rate'?"),
    ("training: {patience: 3}", "@:1: training.patience: unknown key; did you mean 'early_stopping_patience'?"),
    ("training.epochs: 3", "@:1: training.epochs: unknown key; write 'epochs' below 'training:'"),
    ("ffnn: {inputsize: 7}", "@:1: ffnn.inputsize: unknown key; did you mean 'inputSize'?"),
    ("ffnn: 3", "@:1: ffnn: unknown key; allowed: inputSize, outputSize, hiddenSize, load model"),
    ("model: {training: 3}", "@:1: model.training: unknown key; did you mean 'training'?"),
    # wrong kinds and values
    ("training: {epochs: -5}", "@:1: training.epochs: -5 is not allowed; give a whole number, at least 1"),
    ("training: {epochs: true}", "@:1: training.epochs: true is a boolean; give a whole number, at least 1"),
    ("training: {epochs: 64.0}", "@:1: training.epochs: 64.0 is not a whole number; give a whole number, at least 1"),
    ("training: {epochs: '5'}", '@:1: training.epochs: "5" is text; give a whole number, at least 1'),
    ("training: {epochs: 12:30:00}", "@:1: training.epochs: 12:30:00 is text; give a whole number, at least 1"),
    ("training: {epochs: null}", "@:1: training.epochs: null is not allowed; give a whole number, at least 1"),
    ("training: {epochs: [1, 2]}", "@:1: training.epochs: [1, 2] is a list; give a whole number, at least 1"),
    ("training:\n  epochs:\n    a: 1", "@:2: training.epochs: a mapping; give a whole number, at least 1"),
    ("training: {epochs: {}}", "@:1: training.epochs: a mapping; give a whole number, at least 1"),
    ("training: 3", "@:1: training: 3 is a number; give a mapping of keys such as epochs"),
    ("ensemble:\n  grid: auto", "@:2: ensemble.grid: auto is text; give a mapping of keys such as model.hidden_size"),
    (
        "training: {batch_size: 0}",
        "@:1: training.batch_size: 0 is not allowed; give a whole number, at least 1, or full, or null",
    ),
    (
        "data: {validation_split: 1}",
        "@:1: data.validation_split: 1 is not allowed; give a number, at least 0 and below 1, or null",
    ),
    (
        "training: {optimizer: {learning_rate: .nan}}",
        "@:1: training.optimizer.learning_rate: .nan is not a finite number; give a number, above 0",
    ),
    (
        "training: {virtual_ranks: 6}",
        "@:1: training.virtual_ranks: 6 is not allowed; give a power of two, 1 to 65536, or null",
    ),
    ("domain: {clean_data: 1}", "@:1: domain.clean_data: 1 is a number; give true or false"),
    ("domain: {latitude_range: [a, 90]}", "@:1: domain.latitude_range[0]: a is text; give a number"),
    ("domain: {pole: west}", "@:1: domain.pole: west is not allowed; give one of north, south, both, or null"),
    ("use_cuda: maybe", "@:1: use_cuda: maybe is not allowed; give true or false"),
    (
        "data: {data_path: ''}",
        '@:1: data.data_path: "" is not allowed; give text, not empty, or a list of names such as [a, b], or null',
    ),
    (
        "training: {scheduler: {gamma: 0.5}}",
        "@:1: training.scheduler.type: missing; give one of step, cosine, plateau, none, or a library's or your own as "
        "package.module:name",
    ),
    (
        "training:\n  dtype: f\n  epochs: 0\nseed: -1",
        "@:2: training.dtype: f is not allowed; give one of float32, float64\n"
        "@:3: training.epochs: 0 is not allowed; give a whole number, at least 1\n"
        "@:4: seed: -1 is not allowed; give a whole number, at least 0",
    ),
    # YAML's traps
    (
        "output: {model_dir: off}",
        '@:1: output.model_dir: off is a boolean in YAML; put it in quotes to make it text: "off"',
    ),
    (
        "output: {model_dir: 1.10}",
        '@:1: output.model_dir: 1.10 is a number in YAML; put it in quotes to make it text: "1.10"',
    ),
    (
        "variables:\n  input_variables:\n  - sst\n  - no",
        '@:4: variables.input_variables[1]: no is a boolean in YAML; put it in quotes to make it text: "no"',
    ),
    (
        "seed: 010",
        "@:1: seed: 010 is read differently by different YAML readers; "
        'write a plain decimal number, or "010" in quotes for text',
    ),
    ("seed: 1\nmodel: {}\nseed: 2", "@:3: seed: given twice, first at line 1; keep one"),
    ("training:\n  seed: 1\n  seed: 2", "@:3: training.seed: given twice, first at line 2; keep one"),
    (
        "x: !!python/name:os.system",
        "@:1: x: the tag tag:yaml.org,2002:python/name:os.system is not supported; remove it",
    ),
    ("x: !!int abc", "@:1: x: abc cannot be read as int; write a plain value"),
    ("a: &x [*x]", "@:1: a: an alias refers to a value that contains it; write the values out"),
    ("a: &x [{b: *x}]", "@:1: a: an alias refers to a value that contains it; write the values out"),
    ("a: &x {<<: *x}", "@:1: a: an alias refers to a value that contains it; write the values out"),
    ("? [a]\n: b", "@:1: a key is a list; keys are names"),
    ("- a", "@:1: the file contains a list; write sections of keys, such as 'training:'"),
    ("words", "@:1: the file contains 'words'; write sections of keys, such as 'training:'"),
    ("a: " + "[" * 1200, "@:1: nested too deeply; a configuration has three levels"),
    (
        "training:\n\tepochs: 5",
        "@:2: not valid YAML: while scanning for the next token found character '\\t' that cannot start any token; "
        "indent with spaces, not tabs",
    ),
    (
        "\na: b: c",
        "@:2: not valid YAML: mapping values are not allowed here; put text with special characters in quotes",
    ),
    (
        "data:\n  data_path: a: b",
        "@:2: not valid YAML: mapping values are not allowed here; put text with special characters in quotes",
    ),
    (
        "training:\n  epochs: 3\noutput: C: x",
        "@:3: not valid YAML: mapping values are not allowed here; put text with special characters in quotes",
    ),
    (
        "training: # c\n  a: b: c",
        "@:2: not valid YAML: mapping values are not allowed here; put text with special characters in quotes",
    ),
    ("training:\n  epochs: 2\n   seed: 3", f"@:3: not valid YAML: mapping values are not allowed here; {COLUMNS}"),
    (
        "training:\n   epochs: 2\n  # a comment\n  seed: 3",
        "@:4: not valid YAML: while parsing a block mapping expected <block end>, but found '<block mapping start>'; "
        f"{COLUMNS}",
    ),
    ("\n\na: x\x07", "@:3: not valid YAML: an unprintable character; remove it"),
    # the same thing twice
    (
        "train: {epochs: 3}\ntraining: {epochs: 4}",
        "@:2: training.epochs: the same setting as train.epochs at line 1; keep one of them",
    ),
    (
        "use_cuda: true\ncompute: {device: cpu}",
        "@:2: compute.device: the same setting as use_cuda at line 1; keep one of them",
    ),
    # settings that do not go together
    (
        "training:\n  batch_size: 3\n  global_batch_size: 4",
        "@:2: training.batch_size: 3: not together with training.global_batch_size; "
        "keep one of them: batch_size is per rank, global_batch_size over all ranks",
    ),
    (
        "training:\n  reduction: fixed\ndistributed: {strategy: ddp}",
        "@:2: training.reduction: fixed: not possible with distributed.strategy=ddp; remove one of them",
    ),
    (
        "model: {input_size: 8}\nvariables: {input_variables: [sst, sss]}",
        "@:1: model.input_size: 8: variables.input_variables has 2 names; remove the key or give 2",
    ),
    (
        "semantics: reference\ntraining:\n  shuffle: true\n  batch_size: 4",
        f"@:3: training.shuffle: true: {REFERENCE}; give false or semantics: standard\n"
        f"@:4: training.batch_size: 4: {REFERENCE}; give full or semantics: standard",
    ),
    (
        "semantics: reference\ndomain: {latitude_range: [50, 90]}",
        f"@:2: domain.latitude_range: [50, 90]: {REFERENCE}; give null or semantics: standard",
    ),
    (
        "semantics: reference\nmodel: {hidden_layers: 2}",
        f"@:2: model.hidden_layers: 2: {REFERENCE}; give 1 or semantics: standard",
    ),
]

BAD_OVERRIDES = [
    ("training.epochs=-5", "training.epochs=-5: not allowed; give a whole number, at least 1"),
    ("training.epochs=off", "training.epochs=off: a boolean; give a whole number, at least 1"),
    ("training.epoch=5", "training.epoch: unknown key; did you mean 'epochs'?"),
    ("output.model_dir=off", 'output.model_dir=off: a boolean in YAML; put it in quotes to make it text: "off"'),
    ("training.epochs", "training.epochs: not a setting; write KEY=VALUE, such as training.epochs=50"),
    ("training..epochs=5", "training..epochs=5: not a setting; write KEY=VALUE, such as training.epochs=50"),
    (
        "data.data_path=a: b",
        "data.data_path: a mapping; give text, not empty, or a list of names such as [a, b], or null",
    ),
    (
        "data.data_path=[",
        "data.data_path=[: not valid YAML: while parsing a flow node expected the node content, "
        "but found '<stream end>'; close each [ and {",
    ),
    ("data.data_path=\udcff", r"data.data_path=\udcff: not valid YAML: an unprintable character; remove it"),
]


def message_of(path: Path | None, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_run_config(path, overrides)
    return str(caught.value)


@pytest.mark.parametrize(("text", "expected"), BAD_FILES)
def test_a_bad_file_gives_one_exact_line_for_each_fault(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    assert message_of(path) == re.sub(r"^@", str(path), expected, flags=re.MULTILINE)


@pytest.mark.parametrize(("override", "expected"), BAD_OVERRIDES)
def test_a_bad_override_gives_one_exact_line(override: str, expected: str) -> None:
    assert message_of(None, override) == f"command line: {expected}"


@pytest.mark.parametrize(
    ("section", "setting", "allowed"),
    [
        ("data", "validation_split: 0.2", "0"),
        ("training", "early_stopping_patience: 3", "null"),
        ("training", "batch_size: 64", "full"),
        ("training", "global_batch_size: 64", "full"),
        ("training", "reduction: fixed", "null"),
        ("training", "shuffle: true", "false"),
        ("training", "scheduler: {type: step}", "none"),
    ],
)
def test_reference_refuses_what_the_cpp_program_lacks(tmp_path: Path, section: str, setting: str, allowed: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"semantics: reference\n{section}:\n  {setting}\n", encoding="utf-8")
    key = "training.scheduler.type: step" if "scheduler" in setting else f"{section}.{setting}"
    assert message_of(path) == f"{path}:3: {key}: {REFERENCE}; give {allowed} or semantics: standard"


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_reference_on_another_backend_is_a_launch_error(backend: str) -> None:
    what = f"command line: compute.backend={backend}: semantics reference needs MPI; give auto or mpi, or "
    with pytest.raises(LaunchError, match=re.escape(what)):
        load_run_config(None, ["semantics=reference", f"compute.backend={backend}"])


def test_both_batch_sizes_on_the_command_line_are_refused() -> None:
    assert "not together" in message_of(None, "training.batch_size=3", "training.global_batch_size=4")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing, latin1, large = tmp_path / "no\nfile.yaml", tmp_path / "latin1.yaml", tmp_path / "large.yaml"
    latin1.write_bytes(b"seed: 1\n# caf\xe9\n")
    large.write_bytes(b"#" * (1 << 21))
    shown = str(missing).replace("\n", "\\n")
    assert message_of(missing) == f"{shown}: no such file; give the path of a YAML file"
    assert message_of(tmp_path).startswith(f"{tmp_path}: cannot be read: ")
    assert message_of(latin1) == f"{latin1}:2: not UTF-8 text; save the file as UTF-8"
    assert message_of(large) == f"{large}: larger than 1048576 bytes; a configuration is a short YAML file"


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(OLDER_FILES), where=st.floats(0, 1), cut=st.integers(0, 12), put=PIECES)
def test_a_damaged_file_gives_lines_that_name_it_or_loads(
    tmp_path: Path, name: Path, where: float, cut: int, put: str
) -> None:
    path, text = tmp_path / "run.yaml", name.read_text(encoding="utf-8")
    start = int(where * len(text))
    path.write_text(text[:start] + put + text[start + cut :], encoding="utf-8")
    message = ""
    try:
        config = load_run_config(path, ()).config
    except (ConfigError, LaunchError) as error:
        message = str(error)
    else:
        path.write_text(render_yaml(config), encoding="utf-8")
        assert load_run_config(path, ()).config == config
    lines = message.splitlines()
    assert all(line.isprintable() for line in lines)
    assert all(line.startswith(f"{path}:") for line in lines[:20])


def test_twenty_faults_are_listed_and_the_others_counted(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("".join(f"{letter}: 1\n" for letter in "abcdefghijklmnopqrstuvwxy"))
    lines = message_of(tmp_path / "run.yaml").splitlines()
    assert (len(lines), lines[-1]) == (21, "and 5 more")


def test_aliases_cannot_make_a_small_file_endless(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    lists = "\n".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 30))
    maps = "\n".join(f"m{i}: &m{i} {{{', '.join(f'k{k}: *m{i - 1}' for k in range(9))}}}" for i in range(1, 30))
    path.write_text(f"seed: -1\nl0: &l0 [a]\n{lists}", encoding="utf-8")
    assert message_of(path).startswith(f"{path}:1: seed: -1 is not allowed")
    path.write_text(f"m0: &m0 {{a: b}}\n{maps}", encoding="utf-8")
    assert "more than 1000 settings" in message_of(path)


def test_an_error_with_a_table_is_the_same_after_it_has_travelled():
    """Errors go from rank to rank, and to other processes, by pickle: a table's lines must arrive as lines."""
    error = LaunchError("what\nis wrong", "source  rank", "MPI     0")
    for copy in (pickle.loads(pickle.dumps(error)), type(error)(*error.args)):
        assert str(copy) == str(error) == "what\\nis wrong\nsource  rank\nMPI     0"
