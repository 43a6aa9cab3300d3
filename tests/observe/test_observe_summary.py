from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from mpitrain.data.selection.settings import name_files
from mpitrain.observe.step_times import StepTiming
from mpitrain.observe.summary import RunSummary, TargetSkill, are_in_memory, render_summary

WHOLE = RunSummary(
    run_folder=Path("my run"),
    model_file=Path("my run/own/arctic.pt"),
    semantics="standard",
    world_size=1,
    num_virtual_ranks=8,
    num_training_samples=9123,
    num_validation_samples=1004,
    num_dropped_samples=0,
    epochs=60,
    steps=5400,
    wall_time_s=73.4,
    train_loss=1.17e-3,
    validation_loss=1.36e-3,
    mean_predictor_mse=4.2e-2,
    noise_mse=1e-3,
    weights_sha256="0123456789abcdef" * 4,
    best_epoch=57,
    is_synthetic_data=True,
    skills=(TargetSkill("sst", "degC", 0.0125, 0.25, 0.95), TargetSkill("cover", "1", -0.5, 1.0, None)),
    skill_samples="over all held-out samples, 1,004 values of each target",
    phases=(("starting", 4.02), ("compiling", 0.01), ("training", 64.0), ("model and report", 5.4)),
)


def test_whole_summary() -> None:
    assert render_summary(WHOLE) == (
        "Skill    sst: RMSE 0.25 degC, bias 0.0125 degC, r2 0.95\n"
        "         cover: RMSE 1, bias -0.5\n"
        "         over all held-out samples, 1,004 values of each target\n"
        "Loss     train 1.1700e-03, validation 1.3600e-03 (best: epoch 57)\n"
        "         0.0324 of the mean predictor's 4.2000e-02, 1.36 times the noise floor 1.0000e-03\n"
        "Trained  60 epochs, 5,400 steps on 1 rank (standard, 8 microbatches)\n"
        "Samples  9,123 for training, 1,004 for validation, 0 dropped\n"
        "Time     1:13 in all: starting 4.0 s, training 1:04, model and report 5.4 s\n"
        "Weights  SHA-256 0123456789ab (all 64 digits in report.html)\n"
        "Model    my run/own/arctic.pt\n"
        "Report   my run/report.html\n"
        "Next     mpitrain train --data YOUR_FILE.nc --output YOUR_RUN   # this run used synthetic data\n"
        "Next     mpitrain train 'my run/config.yaml' --resume --epochs 120   # continue training\n"
    )


def test_nothing_known_renders_nothing() -> None:
    assert render_summary(RunSummary()) == ""


def test_baselines_stand_below_the_mean_predictor_and_the_best_of_them_must_be_beaten() -> None:
    baselines = {"linear regression": 1.7e-3, "climatology by place": 1.3e-3}
    text = render_summary(dataclasses.replace(WHOLE, baselines=baselines))
    assert "noise floor 1.0000e-03\n         0.8 of linear regression's 1.7000e-03\n" in text
    assert (
        "\n         1.05 of climatology by place's 1.3000e-03\n         NO BETTER than climatology by place. Try"
        in text
    )
    assert "NO BETTER" not in render_summary(dataclasses.replace(WHOLE, baselines={"linear regression": 1.7e-3}))
    # A linear truth has no better predictor: equal but for chance is no failure, unless it is the mean.
    alike = render_summary(dataclasses.replace(WHOLE, baselines={"linear regression": 0.999 * WHOLE.validation_loss}))
    assert "As good as linear regression" in alike
    assert "NO BETTER" not in alike


def test_still_improving_is_said_where_the_best_epoch_is_the_last() -> None:
    line = "still improving: more training.epochs will probably lower it"
    assert line not in render_summary(WHOLE)
    assert line in render_summary(dataclasses.replace(WHOLE, best_epoch=60))


def test_a_run_that_stopped_early_does_not_advise_more_epochs() -> None:
    assert "--resume" not in render_summary(dataclasses.replace(WHOLE, stopped_early=True))


def test_a_resumed_run_tells_what_it_trained_now() -> None:
    more = render_summary(dataclasses.replace(WHOLE, steps_before=5000))
    assert "\nTrained  60 epochs, 5,400 steps in all, the last 400 now, on 1 rank (standard" in more
    nothing = render_summary(dataclasses.replace(WHOLE, steps_before=5400))
    assert "\nTrained  no new steps: the 60 epochs, 5,400 steps of this run were done before\n" in nothing


KNOWN_IN_WHOLE = [field.name for field in dataclasses.fields(RunSummary) if getattr(WHOLE, field.name) is not None]


@pytest.mark.parametrize("field", KNOWN_IN_WHOLE)
def test_every_single_field_may_be_unknown_and_is_used(field: str) -> None:
    others = {"phases": None} if field == "wall_time_s" else {}  # the phases' sum takes its place
    text = render_summary(dataclasses.replace(WHOLE, **{field: None}, **others))
    assert text != render_summary(WHOLE)
    assert "None" not in text


def test_without_validation_the_train_loss_is_compared() -> None:
    text = render_summary(RunSummary(train_loss=0.5, mean_predictor_mse=2.0))
    assert text == "Loss     train 5.0000e-01\n         0.25 of the mean predictor's 2.0000e+00\n"


def test_own_data_needs_no_hint_to_own_data() -> None:
    assert "YOUR_FILE" not in render_summary(dataclasses.replace(WHOLE, is_synthetic_data=False))


def test_a_run_whose_best_epoch_is_the_last_is_still_improving() -> None:
    text = render_summary(dataclasses.replace(WHOLE, best_epoch=60))
    assert "validation 1.3600e-03 (best: epoch 60, the last)\n" in text
    assert "\n         still improving: more training.epochs" in text
    assert "improving" not in render_summary(WHOLE)


def test_of_many_targets_the_first_are_shown() -> None:
    levels = tuple(TargetSkill(f"t{number}", "K", 0.0, 1.0, 0.5) for number in range(30))
    text = render_summary(RunSummary(skills=levels))
    assert text.count("RMSE") == 8
    assert "and 22 more targets, in report.html" in text


def test_the_time_without_phases_is_the_whole() -> None:
    assert render_summary(RunSummary(wall_time_s=73.4)) == "Time     1:13 in all\n"


def test_a_run_on_data_from_python_goes_on_from_python() -> None:
    passing, kept = ["/dev/shm/mpitrain-0a1b/dataset.nc"], ["mpitrain_run/cice_history.nc", "b.nc"]
    handed_over = are_in_memory(passing)
    assert (handed_over, are_in_memory(kept)) == (True, False)
    assert (name_files(passing), name_files(kept)) == ("data in memory", " ".join(kept))
    text = render_summary(RunSummary(run_folder=Path("run"), epochs=20, is_handed_over=handed_over))
    assert "Next     mpitrain.train(..., resume=True, epochs=40)   # continue training\n" in text
    assert "config.yaml" not in text


def test_a_run_of_code_goes_on_with_trust() -> None:
    text = render_summary(RunSummary(run_folder=Path("run"), epochs=20, needs_trust=True))
    assert "mpitrain train run/config.yaml --resume --trust-code --epochs 40 " in text


def test_a_loss_that_still_falls_asks_for_more_epochs_and_no_smaller_steps() -> None:
    failed = dataclasses.replace(WHOLE, baselines={"linear regression": 1e-3})
    assert "Try a smaller training.optimizer.learning_rate, more training.epochs,\n" in render_summary(failed)
    falling = render_summary(dataclasses.replace(failed, best_epoch=60))
    assert "Try more training.epochs,\n" in falling
    assert "smaller" not in falling


@pytest.mark.parametrize(("num_steps", "is_told"), [(9, False), (11, True)])
def test_a_slow_rank_is_named_where_it_has_cost_a_second(num_steps: int, is_told: bool) -> None:
    seconds = {"reading": (0.0, 0.0), "computing": (0.1, 0.2), "communicating": (0.0, 0.0), "waiting": (0.1, 0.0)}
    timing = StepTiming(num_steps, 0.2, 64.0, seconds, (1.0, 1.0), (None, None), ("n0", "n0"), (0, 0))
    told = "rank 1 on n0 is slow in computing" in render_summary(dataclasses.replace(WHOLE, timing=timing))
    assert told is is_told
