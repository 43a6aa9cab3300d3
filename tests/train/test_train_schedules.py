"""Learning rates against their formulas."""

import math

import pytest

from mpitrain.config.training import SCHEDULES
from mpitrain.train.schedules.schedule import learning_rates


@pytest.mark.parametrize("settings", [None, SCHEDULES.validate({"type": "none", "gamma": 0.1})])
@pytest.mark.parametrize("epoch", [0, 7, 99])
def test_without_a_schedule_the_rate_is_constant(settings, epoch):
    assert learning_rates(settings, 0.02, 100)(epoch, 0) == 0.02


def test_step_multiplies_every_step_size_epochs():
    settings = SCHEDULES.validate({"type": "step", "step_size": 3, "gamma": 0.5})
    rates = [learning_rates(settings, 0.8, 10)(epoch, 0) for epoch in range(10)]
    assert rates == [0.8] * 3 + [0.4] * 3 + [0.2] * 3 + [0.1]


@pytest.mark.parametrize("lowest", [0.0, 0.01])
def test_cosine_goes_from_the_base_to_the_lowest(lowest):
    settings = SCHEDULES.validate({"type": "cosine", "min_learning_rate": lowest})
    rates = [learning_rates(settings, 0.5, 10)(epoch, 0) for epoch in range(11)]
    assert rates[0] == 0.5
    assert rates[10] == pytest.approx(lowest, abs=1e-16)
    assert rates[5] == pytest.approx((0.5 + lowest) / 2, rel=1e-15)
    assert rates == sorted(rates, reverse=True)
    for epoch, rate in enumerate(rates):
        assert rate == pytest.approx(
            lowest + (0.5 - lowest) * math.cos(math.pi * epoch / 20) ** 2, rel=1e-13, abs=1e-16
        )
