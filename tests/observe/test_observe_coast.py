"""The coastlines that come with the package: where there is a coast, and where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from mpitrain.observe.maps.field_map import coastlines


@pytest.mark.parametrize(
    ("longitude", "latitude", "is_near"),
    [
        (-5.6, 36.0, True),  # Strait of Gibraltar
        (-67.3, -55.5, True),  # Cape Horn
        (140.9, 38.3, True),  # Honshu
        (166.7, -77.8, True),  # Ross Island
        (-150.0, 0.0, False),  # the Pacific
        (90.0, 60.0, False),  # Siberia
        (0.0, -90.0, False),  # no edge along the South Pole
        (180.0, -80.0, False),  # nor along the antimeridian
    ],
)
def test_a_coast_is_drawn_where_there_is_one(longitude: float, latitude: float, is_near: bool) -> None:
    points = np.concatenate(coastlines())
    east = (points[:, 0] - longitude + 180.0) % 360.0 - 180.0
    distance_deg = np.hypot(east * np.cos(np.radians(latitude)), points[:, 1] - latitude)
    assert (distance_deg.min() < 1.5) == is_near


def test_lines_lie_on_the_globe_and_have_no_jumps() -> None:
    for line in coastlines():
        assert line.shape[1] == 2
        assert len(line) > 1
        assert (np.abs(line[:, 0]) <= 180.0).all()
        assert (np.abs(line[:, 1]) <= 90.0).all()
        assert np.abs(np.diff(line[:, 0])).max() < 20.0
