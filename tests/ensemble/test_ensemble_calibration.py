"""Spread against error: exact where the truth is one more draw, and too small where it is not."""

from __future__ import annotations

import numpy as np
import pytest

from mpitrain.ensemble.calibration import calibration_of

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("num_members", [2, 5, 20])
def test_a_truth_like_a_member_is_calibrated(num_members: int):
    numbers = np.random.default_rng(num_members)
    scale = numbers.uniform(0.1, 3, size=4000)
    draws = scale * numbers.standard_normal((num_members + 1, 4000))
    found = calibration_of(draws[1:], draws[0])
    assert 0.95 < found.ratio < 1.05
    assert len(found.rank_counts) == num_members + 1
    assert abs(np.array(found.rank_counts) / 4000 - 1 / (num_members + 1)).max() < 0.03
    # Bin by bin too: where the members spread more, they err more; a bin of estimated spreads is more extreme than what
    # they estimate, with 20 members by up to sqrt(2 / 19) / 2.
    foretold, errors = np.array(found.bins).T
    if num_members == 20:
        assert (foretold / errors > 0.8).all()
        assert (foretold / errors < 1.2).all()


def test_known_noise_belongs_to_what_is_foretold():
    numbers = np.random.default_rng(1)
    draws = numbers.standard_normal((11, 5000))
    noisy = draws[0] + 2 * numbers.standard_normal(5000)
    assert 0.95 < calibration_of(draws[1:], noisy, noise_variance=4.0).ratio < 1.05
    assert calibration_of(draws[1:], noisy).ratio < 0.6


def test_networks_of_independent_data_are_calibrated():
    """Least squares on data of known noise: each member has data of its own, and so has the truth's estimate."""
    numbers = np.random.default_rng(2)
    weights, noise = numbers.standard_normal(40), 0.5
    inputs = numbers.standard_normal((3000, 40))

    def fitted() -> np.ndarray:
        own = numbers.standard_normal((200, 40))
        return np.linalg.lstsq(own, own @ weights + noise * numbers.standard_normal(200), rcond=None)[0]

    values = np.stack([inputs @ fitted() for _ in range(16)])
    truth = inputs @ fitted() + noise * numbers.standard_normal(3000)
    assert 0.8 < calibration_of(values, truth, noise**2).ratio < 1.2
