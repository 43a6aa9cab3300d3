"""Flags of other trainers and what happens with each; most are only parsed, a few run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import launch

from mpitrain.cli import main as command
from mpitrain.cli.older_flags import DIALECTS, to_current_flags
from mpitrain.cli.settings import split_settings
from mpitrain.config import load_run_config
from mpitrain.errors import UserError

TRAIN = [
    ("--config run.yaml", "run.yaml"),
    ("-c run.yaml", "run.yaml"),
    ("--config=run.yaml", "run.yaml"),
    ("--learning-rate 0.1", "training.optimizer.learning_rate=0.1"),
    ("--learning_rate=0.1", "training.optimizer.learning_rate=0.1"),
    ("--num-workers 3", "data.num_workers=3"),
    ("--num_workers 3", "data.num_workers=3"),
    ("--gradient-checkpointing", "training.gradient_checkpointing=true"),
    ("--no-compile", "training.torch_compile=false"),
    ("--output_dir run", "output.model_dir=run"),
    ("--checkpoint-dir run", "output.model_dir=run"),
    ("--log_level debug", "--log-level debug"),
    ("--backend nccl", "distributed.backend=nccl"),
    ("--batch_size 3", "--batch-size 3"),
    ("--max-grad-norm 1", "training.gradient_clip_norm=1"),
    ("--warmup-epochs 3", "training.warmup_epochs=3"),
    ("--fp16", "training.use_amp=true training.amp_dtype=float16"),
    ("--no-cuda", "compute.device=cpu"),
    ("--seed 3", "seed=3"),
    ("--resume-from run", "--resume run"),
    ("--wandb --wandb-project ice", "tracking.wandb=true tracking.wandb_project=ice"),
    ("--wandb_entity=polar --wandb-tags a,b", "tracking.wandb_entity=polar tracking.wandb_tags=a,b"),
    ("--wandb-run-name first --no-wandb", "tracking.wandb_name=first tracking.wandb=false"),
    ("--epochs 3 training.x=-1 --lr -1", "--epochs 3 training.x=-1 --lr -1"),
]
LAUNCH = [
    ("--time-limit 01:00:00", "--walltime 01:00:00"),
    ("--time_limit=01:00:00", "--walltime 01:00:00"),
    ("--world-size 4", "--ntasks 4"),
    ("--gpus 2", "--gpus-per-node 2"),
    ("--nproc_per_node 2", "--tasks-per-node 2"),
    ("--dry-run", ""),
    ("--epochs 3", "training.epochs=3"),
    ("--num-workers 3", "data.num_workers=3"),
    ("-c run.yaml", "run.yaml"),
]
REFUSED = [
    (
        "train --world-size 4",
        "--world-size 4: it is 1 .*; leave the option out, because the launcher sets the number of ranks",
    ),
    ("train --time-limit 1", "--time-limit: it belongs to the job.*--walltime"),
    ("train --train-samples 9", "--train-samples: give data.num_samples"),
    ("train --val_samples=9", "--val-samples: give .*data.validation_split"),
    ("train --data-type synthetic", "--data-type: give data.samples"),
    ("train --nproc-per-node 2", "--nproc-per-node: .*--tasks-per-node"),
    ("launch --train-samples 9", "--train-samples: give data.num_samples"),
    ("train --num-workers", "--num-workers: needs a value"),
    ("train --num-workers --debug", "--num-workers: needs a value"),
]


@pytest.mark.lab
@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [("train", *row) for row in TRAIN] + [("launch", *row) for row in LAUNCH],
)
def test_a_flag_of_the_same_meaning_is_understood(name: str, given: str, expected: str) -> None:
    words = to_current_flags([name, *given.split()], flags_of(name))
    assert words == [name, *expected.split()]
    if "training.x" not in given:
        options = command._parse(words)
        load_run_config(None, split_settings(options.settings)[1])


def flags_of(name: str) -> set[str]:
    return command._flags_of(command._build_parser([name]), [name])


@pytest.mark.parametrize(("given", "words"), REFUSED)
def test_of_a_flag_of_another_meaning_the_right_one_is_named(
    given: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command._parse(given.split())
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(words, line)


@pytest.mark.parametrize("name", DIALECTS)
def test_no_flag_of_ours_is_taken_for_another_trainers(name: str) -> None:
    dialect, own = DIALECTS[name], flags_of(name)
    assert not own & {*dialect.renamed, *dialect.dropped, *dialect.checked}
    assert {replaced[0] for replaced in dialect.renamed.values()} <= own


def test_a_key_s_name_is_a_flag_with_dashes_and_a_switch_where_it_is_true_or_false() -> None:
    given = [
        "train",
        "--hidden-activation",
        "relu",
        "--no-deterministic",
        "--hidden-dim=8",
        "--streaming",
        "--nope",
        "1",
    ]
    assert to_current_flags(given, flags_of("train")) == [
        "train", "model.hidden_activation=relu", "training.deterministic=false", "model.hidden_size=8",
        "data.streaming=true", "--nope", "1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run.yaml"], ("run.yaml", [])),
        (["training.epochs=1", "run.yaml"], ("run.yaml", ["training.epochs=1"])),
        (["anything", "a.b=c.yaml"], ("anything", ["a.b=c.yaml"])),
        (["a.b=c"], (None, ["a.b=c"])),
    ],
)
def test_the_file_may_stand_anywhere(words: list[str], expected: tuple[str | None, list[str]]) -> None:
    path, overrides = split_settings(words)
    assert (path and str(path), overrides) == expected


def test_two_files_are_one_too_many() -> None:
    with pytest.raises(UserError, match=r"b.yaml: a second file of settings, after a.yaml"):
        split_settings(["a.yaml", "b.yaml"])


@pytest.mark.parametrize(
    ("given", "settings", "resume"),
    [
        ("train --resume", [], ""),
        ("train --resume run", [], "run"),
        ("train a.b=1 --resume run.yaml --epochs 3 c.d=1", ["a.b=1", "c.d=1"], "run.yaml"),
        ("train --nope", None, None),
        ("train a.b=1 --epochs 3 nonsense", None, None),
    ],
)
def test_words_after_flags(given: str, settings: list[str] | None, resume: str | None) -> None:
    if settings is None:
        with pytest.raises(SystemExit):
            command._parse(given.split())
        return
    options = command._parse(given.split())
    assert (options.settings, options.resume) == (settings, resume)


@pytest.mark.lab
def test_a_file_alone_trains_and_a_path_is_resumed(tmp_path: Path, small_history: Path) -> None:
    (tmp_path / "run.yaml").write_text(f"data: {{data_path: {small_history}}}\noutput: {{model_dir: first}}\n")
    done = launch(["-m", "mpitrain", "run.yaml", "--num_epochs", "2", "--log_level", "DEBUG"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    checkpoints = tmp_path / "first" / "checkpoints"
    assert (checkpoints / "latest" / "commit.json").is_file()
    assert (checkpoints / "best" / "commit.json").is_file()

    (tmp_path / "first").rename(tmp_path / "moved")
    moved = launch(["-m", "mpitrain", "--resume", "moved", "--epochs", "3"], cwd=tmp_path)
    assert moved.returncode == 0, moved.stderr
    assert "resuming from moved/checkpoints/step-" in moved.stdout
    assert not (tmp_path / "first").exists()
    steps = sorted(path for path in (tmp_path / "moved" / "checkpoints").glob("step-*"))
    older = launch(["-m", "mpitrain", f"--resume={steps[0]}", "--epochs", "3"], cwd=tmp_path)
    assert older.returncode == 2
    assert "not the newest" in older.our_lines[0]
    elsewhere = launch(
        ["-m", "mpitrain", "--resume", str(steps[0]), "--epochs", "3", "--output", "elsewhere"], cwd=tmp_path
    )
    assert elsewhere.returncode == 0, elsewhere.stderr
    assert hash_line(elsewhere.stdout) == hash_line(moved.stdout)
    again = launch(["-m", "mpitrain", "--resume", "elsewhere"], cwd=tmp_path)
    assert "Trained  no new steps: the 3 epochs" in again.stdout
    for path, words in (("moved/checkpoints/best", "the best weights"), ("nowhere", "neither a run folder nor")):
        refused = launch(["-m", "mpitrain", "--resume", path], cwd=tmp_path)
        assert (refused.returncode, len(refused.our_lines)) == (2, 1)
        assert words in refused.our_lines[0]


def hash_line(output: str) -> str:
    return next(line for line in output.splitlines() if line.startswith("Weights"))
