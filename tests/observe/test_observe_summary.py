from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from mpitrain.observe.summary import RunSummary, render_summary

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
)


def test_whole_summary() -> None:
    assert render_summary(WHOLE) == (
        "Trained  60 epochs, 5,400 steps in 1:13 on 1 rank (standard, 8 virtual ranks)\n"
        "Samples  9,123 for training, 1,004 for validation, 0 dropped\n"
        "Loss     train 1.1700e-03, validation 1.3600e-03 (best: epoch 57)\n"
        "         0.0324 of the mean predictor's 4.2000e-02, 1.36 times the noise floor 1.0000e-03\n"
        "Weights  SHA-256 0123456789ab (all 64 digits in report.html)\n"
        "Model    my run/own/arctic.pt\n"
        "Report   my run/report.html\n"
        "Next     mpitrain train --data YOUR_FILE.nc --output YOUR_RUN   # this run's data was made up\n"
        "Next     mpitrain train 'my run/config.yaml' --resume --epochs 120   # go on from here\n"
    )


def test_nothing_known_renders_nothing() -> None:
    assert render_summary(RunSummary()) == ""


def test_a_resumed_run_tells_what_it_trained_now() -> None:
    more = render_summary(dataclasses.replace(WHOLE, steps_before=5000))
    assert more.startswith("Trained  60 epochs, 5,400 steps in all, the last 400 now, in 1:13 on 1 rank (standard")
    nothing = render_summary(dataclasses.replace(WHOLE, steps_before=5400))
    assert nothing.startswith("Trained  nothing more: the 60 epochs, 5,400 steps of this run were done before\n")


KNOWN_IN_WHOLE = [field.name for field in dataclasses.fields(RunSummary) if getattr(WHOLE, field.name) is not None]


@pytest.mark.parametrize("field", KNOWN_IN_WHOLE)
def test_every_single_field_may_be_unknown_and_is_used(field: str) -> None:
    text = render_summary(dataclasses.replace(WHOLE, **{field: None}))
    assert text != render_summary(WHOLE)
    assert "None" not in text


def test_without_validation_the_train_loss_is_compared() -> None:
    text = render_summary(RunSummary(train_loss=0.5, mean_predictor_mse=2.0))
    assert text == "Loss     train 5.0000e-01\n         0.25 of the mean predictor's 2.0000e+00\n"


def test_own_data_needs_no_hint_to_own_data() -> None:
    assert "YOUR_FILE" not in render_summary(dataclasses.replace(WHOLE, is_synthetic_data=False))
