"""Mixed precision: what is computed in the narrow type, what stays wide, and the loss scale of float16."""

import pytest
import torch
from played_runs import MLP, Run, fitted_hashes, in_turns, one_step, points, run_alone, with_values
from torch import nn

from mpitrain.errors import ConfigError, StoppedError
from mpitrain.train.engines import precision

BFLOAT16 = (*MLP, "training.use_amp=true")
FLOAT16 = (*BFLOAT16, "training.amp_dtype=float16")
GROWTH_INTERVAL = 2000  # torch's own


@pytest.fixture(autouse=True)
def any_cpu(monkeypatch):
    # torch emulates float16 where the CPU lacks it: slow, and enough for a test.
    monkeypatch.setattr(precision, "cpu_has_float16", lambda: True)


def scale_of(run):
    """The loss scale, and its good steps in a row."""
    scale, age = run.engine.gather_state()["loss_scale"].tolist()
    return scale, int(age)


def set_scale(run, scale, age=0):
    run.engine.restore_state(run.engine.gather_state() | {"loss_scale": torch.tensor([float(scale), float(age)])})


@pytest.mark.parametrize(
    ("settings", "narrow"), [(BFLOAT16, torch.bfloat16), (FLOAT16, torch.float16), (MLP, torch.float32)]
)
def test_layers_compute_in_the_narrow_type_and_what_is_kept_stays_wide(settings, narrow):
    run, seen = run_alone(*settings, "training.engine=eager"), set()
    set_scale(run, 64) if settings is FLOAT16 else None  # which overflows in no step
    for module in run.model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda *call: seen.add((torch.is_grad_enabled(), call[2].dtype)))
    run.steps()
    run.engine.validation_loss()
    assert (True, narrow) in seen
    assert seen <= {(True, narrow), (False, torch.float32)}, "validation is not in full precision"
    kept = [*run.model.parameters(), *(value for own in run.engine.optimizer.state.values() for value in own.values())]
    assert {tensor.dtype for tensor in kept} == {torch.float32}
    assert len(kept) > 6


@pytest.mark.parametrize("settings", [BFLOAT16, FLOAT16], ids=["bfloat16", "float16"])
def test_the_result_is_near_that_of_float32_and_not_the_same(settings):
    plain, narrow = (run_alone(*own, "training.engine=eager") for own in (MLP, settings))
    set_scale(narrow, 64) if settings is FLOAT16 else None
    losses, narrow_losses = plain.steps(), narrow.steps()
    assert narrow_losses != losses
    assert narrow_losses == pytest.approx(losses, rel=0.02)
    assert not torch.equal(narrow.weights(), plain.weights())
    torch.testing.assert_close(narrow.gradient(), plain.gradient(), rtol=0.1, atol=0.02)


@pytest.mark.parametrize("settings", [BFLOAT16, FLOAT16], ids=["bfloat16", "float16"])
def test_any_number_of_ranks_gives_the_same_bits(settings):
    (one,) = fitted_hashes(1, *settings)
    for num_ranks in (2, 3):
        assert fitted_hashes(num_ranks, *settings) == [one] * num_ranks


def with_an_outlier():
    """One sample whose target is far off: its slice's gradient is the largest by far."""
    samples = points()
    targets = samples.targets.copy()
    targets[5] = 1e4
    return with_values(samples, targets=targets)


def test_one_slice_s_overflow_skips_the_step_on_all_ranks_and_halves_the_scale():
    def body(communicator):
        run = Run(communicator, (*FLOAT16, "training.global_batch_size=8", "training.shuffle=false"), with_an_outlier())
        before, trail = run.weights(), []
        set_scale(run, 2.0**13)
        run.engine.start_epoch(0)
        for _ in range(6):
            loss = one_step(run.engine, 0, 0.05).loss
            is_finite = bool(torch.isfinite(run.engine._partials).all())
            trail.append((loss, is_finite, scale_of(run)[0], torch.equal(run.weights(), before)))
        return trail, run.sha256()

    results = in_turns(3, body)
    assert len({sha256 for _, sha256 in results}) == 1
    first = [trail[0] for trail, _ in results]
    assert sum(is_finite for _, is_finite, _, _ in first) == 2, "only one rank's slices were to overflow"
    for loss, _, scale, is_unchanged in first:
        assert torch.isfinite(torch.tensor(loss))
        assert (scale, is_unchanged) == (2.0**12, True)
    # The scale falls until a step is possible.
    assert not results[0][0][-1][3]
    assert results[0][0][-1][2] == min(scale for _, _, scale, _ in results[0][0])


def test_the_scale_grows_after_enough_good_steps():
    run = run_alone(*FLOAT16)
    set_scale(run, 8, GROWTH_INTERVAL - 2)
    run.steps(1)
    assert scale_of(run) == (8, GROWTH_INTERVAL - 1)
    one_step(run.engine, 1, 0.05)
    assert scale_of(run) == (16, 0)


def test_the_scale_does_not_change_the_gradient():
    gradients = []
    for scale in (8, 64):
        run = run_alone(*FLOAT16)
        set_scale(run, scale)
        run.steps(1)
        gradients.append(run.gradient())
    torch.testing.assert_close(*gradients, rtol=0.05, atol=2e-3)


def test_clipping_acts_on_the_gradient_without_its_scale():
    run = run_alone(*FLOAT16, "training.gradient_clip_norm=0.01")
    set_scale(run, 64)
    run.steps(1)
    assert float(run.gradient().norm()) == pytest.approx(0.01, rel=1e-3)


def test_a_checkpoint_holds_the_scale_and_a_resumed_run_restores_it():
    straight, first, resumed = run_alone(*FLOAT16).fit(), run_alone(*FLOAT16, "training.max_steps=3"), None
    with pytest.raises(StoppedError):
        first.fit()
    assert first.checkpoint.tensors["engine.loss_scale"].tolist() == list(scale_of(first))
    resumed = run_alone(*FLOAT16)
    assert scale_of(resumed) != scale_of(first)
    resumed.trainer.resume(first.checkpoint)
    assert scale_of(resumed) == scale_of(first)
    assert resumed.fit().sha256() == straight.sha256()
    assert scale_of(resumed) == scale_of(straight)


def test_bfloat16_needs_no_scale():
    assert "loss_scale" not in run_alone(*BFLOAT16).engine.gather_state()


def test_a_cpu_without_float16_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(precision, "cpu_has_float16", lambda: False)
    with pytest.raises(
        ConfigError, match=r"^training\.amp_dtype=float16: this CPU has no .* use .*=bfloat16 or a GPU$"
    ):
        run_alone(*FLOAT16)
    run_alone(*BFLOAT16)
