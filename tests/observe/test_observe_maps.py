"""Maps: north up, every value at its place, grey where there is none, triangles where cells have no order."""

from __future__ import annotations

import io

import numpy as np
import pytest

from mpitrain.observe.figures import render_png
from mpitrain.observe.maps import field_map
from mpitrain.observe.maps.cells import cell_polygons
from mpitrain.observe.maps.field_map import MapLook, coastlines, draw_map

matplotlib = pytest.importorskip("matplotlib")
LOOK = MapLook("y, predicted", "y (K)", "viridis", (-1.0, 1.0))
GREY = np.full(3, 191 / 255)  # 0.75


@pytest.fixture(autouse=True)
def no_coast(monkeypatch):
    """These tests read the colour of values; a coastline may lie over them."""
    monkeypatch.setattr(field_map, "coastlines", lambda: ())


def rotated(lon, lat, tilt):
    """Longitude and latitude of a grid whose pole is tilted: of a curvilinear grid."""
    lon, lat, tilt = np.radians(lon), np.radians(lat), np.radians(tilt)
    x, y, z = np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)
    x, z = np.cos(tilt) * x + np.sin(tilt) * z, np.cos(tilt) * z - np.sin(tilt) * x
    return np.degrees(np.arctan2(y, x)), np.degrees(np.arcsin(z))


def smooth(lon, lat):
    """A field without a seam, from -1 to 1."""
    return np.sin(np.radians(lat)) * 0.6 + 0.4 * np.cos(np.radians(lon)) * np.cos(np.radians(lat))


def colours_at(figure, lon, lat):
    """Red, green, blue (N, 3) of the picture at these places."""
    picture = matplotlib.image.imread(io.BytesIO(render_png(figure, 120)))[..., :3]
    across, up = figure.axes[0].transData.transform(np.stack([lon, lat], axis=1)).T * (120 / figure.dpi)
    return picture[(len(picture) - up).astype(int), across.astype(int)]


def expected(lon, lat):
    return matplotlib.colormaps["viridis"]((smooth(lon, lat) + 1) / 2)[:, :3]


def of_globe(step=4.0):
    return np.meshgrid(np.arange(-180 + step / 2, 180, step), np.arange(-90 + step / 2, 90, step))


def of_cells(count=6000):
    """Cells all over the globe, as even as can be (a Fibonacci spiral)."""
    number = np.arange(count)
    lon = (number * 360 * 0.6180339887498949) % 360
    return lon, np.degrees(np.arcsin(1 - (2 * number + 1) / count))


GRIDS = {
    "regular": of_globe(),
    "from north to south": tuple(one[::-1] for one in of_globe()),
    "0 to 360": (np.roll(of_globe()[0], 45, axis=1) % 360, of_globe()[1]),
    "curvilinear": rotated(*of_globe(), 35.0),
    "cells": tuple(one[None] for one in of_cells()),
    "rows": of_cells(),
}


@pytest.mark.parametrize("kind", GRIDS)
def test_each_value_is_at_its_place_with_north_up(kind):
    lon, lat = GRIDS[kind]
    values = smooth(lon, lat)
    values[np.hypot(lon % 360 - 60, lat - 10) < 20] = np.nan
    figure = draw_map(values, (lon, lat), LOOK)
    # Near the date line too, and in both hemispheres.
    where = np.array([[-178, 10], [-120, -60], [-60, 60], [8, -30], [120, 45], [178, -50], [100, 80], [100, -80]])
    x = np.where((kind == "0 to 360") & (where[:, 0] < 0), where[:, 0] + 360, where[:, 0]).astype(float)
    np.testing.assert_allclose(colours_at(figure, x, where[:, 1]), expected(*where.T), atol=0.06)
    np.testing.assert_allclose(colours_at(figure, np.array([60.0]), np.array([10.0]))[0], GREY, atol=0.01)
    assert figure.axes[0].get_title() == "y, predicted"
    assert [axes.get_ylabel() for axes in figure.axes] == ["latitude (degrees north)", "y (K)"]
    is_triangles = "TriMesh" in {type(one).__name__ for one in figure.axes[0].collections}
    assert is_triangles == (kind in ("cells", "rows"))


def test_coastlines_are_drawn_over_the_values(monkeypatch):
    monkeypatch.setattr(field_map, "coastlines", coastlines)
    lon, lat = of_globe()
    with_coast = render_png(draw_map(smooth(lon, lat), (lon, lat), LOOK), 120)
    monkeypatch.setattr(field_map, "coastlines", lambda: ())
    without = render_png(draw_map(smooth(lon, lat), (lon, lat), LOOK), 120)
    pictures = [matplotlib.image.imread(io.BytesIO(one))[..., :3].mean(axis=2) for one in (with_coast, without)]
    share = (np.abs(pictures[0] - pictures[1]) > 0.1).mean()
    assert 0.005 < share < 0.2


def test_a_region_across_the_date_line_is_one_piece():
    lon, lat = np.meshgrid(np.arange(160.0, 202.0, 2), np.arange(50.0, 72.0, 2))
    lon = (lon + 180) % 360 - 180
    for places in ((lon, lat), rotated(lon, lat, 5.0), (lon.reshape(1, -1), lat.reshape(1, -1))):
        west, east = draw_map(smooth(*places), places, LOOK).axes[0].get_xlim()
        assert 40 < east - west < 70


def test_land_without_cells_has_no_triangles():
    lon, lat = of_cells()
    sea = np.hypot(lon - 200, lat) > 25
    figure = draw_map(smooth(lon, lat)[sea], (lon[sea], lat[sea]), LOOK)
    inside = np.array([[-160.0, 0.0], [-150.0, 10.0], [-170.0, -8.0]])
    np.testing.assert_allclose(colours_at(figure, *inside.T), np.tile(GREY, (3, 1)), atol=0.01)


def test_what_is_not_selected_is_paler_of_the_same_hue():
    lon, lat = of_globe()
    figure = draw_map(smooth(lon, lat), (lon, lat), LOOK, pale=lat < 0)
    where = np.array([[20.0, -40.0], [20.0, 40.0]])
    full = expected(*where.T)
    wanted = np.stack([0.7 + 0.3 * full[0], full[1]])
    np.testing.assert_allclose(colours_at(figure, *where.T), wanted, atol=0.06)


@pytest.mark.parametrize(
    ("lon", "lat"), [([1.0, 2.0], [3.0, 4.0]), ([1.0, 2.0, 3.0, 4.0], [5.0, 5.0, 5.0, 5.0]), ([1.0], [2.0])]
)
def test_points_that_have_no_triangles_are_dots(lon, lat):
    lon, lat = np.array(lon), np.array(lat)
    figure = draw_map(smooth(lon, lat), (lon, lat), LOOK)
    np.testing.assert_allclose(colours_at(figure, lon, lat), expected(lon, lat), atol=0.02)


def test_long_titles_are_broken_and_nothing_is_drawn_of_nothing():
    figure = draw_map(np.full((4, 5), np.nan), None, MapLook(20 * "long name ", "y"))
    assert "\n" in figure.axes[0].get_title()
    lon, lat = of_globe(30.0)
    assert render_png(draw_map(np.full(lon.shape, np.nan), (lon, lat), LOOK))
    assert render_png(draw_map(np.full(lon.shape, 3.0), (lon, lat), MapLook("t", "y")))


def test_scattered_points_are_dots_and_meshes_are_filled():
    random = np.random.default_rng(0)
    for count in (30, 1500):
        lon, lat = random.uniform(-130, -60, count), random.uniform(20, 60, count)
        figure = draw_map(smooth(lon, lat), (lon, lat), LOOK)
        (dots,) = [one for one in figure.axes[0].collections if type(one).__name__ == "PathCollection"]
        assert len(dots.get_offsets()) == count
    refined = np.meshgrid(np.geomspace(1, 60, 40), np.geomspace(1, 60, 30))
    for lon, lat in (
        of_cells(),
        tuple(one.reshape(-1) for one in refined),
        tuple(one.reshape(-1) for one in of_globe()),
    ):
        figure = draw_map(smooth(lon, lat), (lon, lat), LOOK)
        assert [one for one in figure.axes[0].collections if type(one).__name__ == "TriMesh"]


def test_a_table_of_stations_by_hours_is_dots():
    random = np.random.default_rng(0)
    lon, lat = (
        np.repeat(one[:, None], 3, axis=1) for one in (random.uniform(-130, -60, 50), random.uniform(20, 60, 50))
    )
    values = smooth(lon, lat)
    values[::2, 0] = np.nan
    lon[5], values[5] = np.nan, np.nan
    figure = draw_map(values, (lon, lat), LOOK)
    (dots,) = [one for one in figure.axes[0].collections if type(one).__name__ == "PathCollection"]
    assert len(dots.get_offsets()) == 49


def test_values_without_known_places_are_drawn_by_row_and_column():
    lon, lat = (one.astype(float) for one in np.meshgrid(np.arange(8.0), np.arange(6.0)))
    figure = draw_map(smooth(lon, lat), (np.full_like(lon, np.nan), lat), LOOK)
    assert figure.axes[0].get_xlabel() == "column"


def test_a_strip_is_not_drawn_in_its_own_proportions():
    lon, lat = np.meshgrid(np.arange(0.5, 360), np.arange(-4.5, 5))
    strip, globe = (draw_map(smooth(*one), one, LOOK) for one in ((lon, lat), of_globe()))
    assert strip.axes[0].get_aspect() == "auto"
    assert globe.axes[0].get_aspect() == 1.0


def colour_limits_of(values, pale=None):
    """The values at the ends of the colours, whether others lie beyond, and the words beside the colours."""
    lon, lat = of_globe()
    figure = draw_map(values, (lon, lat), MapLook("t", "y (K)"), pale)
    (bar,) = [one for one in figure.axes[0].collections if type(one).__name__ == "QuadMesh"][:1]
    return *bar.get_clim(), bar.colorbar.extend, figure.axes[1].get_ylabel().replace("\n", " ")


def test_few_values_far_away_do_not_take_the_colours_of_the_others():
    values = smooth(*of_globe())
    ends = float(values.min()), float(values.max())
    assert colour_limits_of(values) == (*ends, "neither", "y (K)")
    values[5, 5] = 9999.0
    low, high, extend, label = colour_limits_of(values)
    assert low == ends[0]
    assert ends[1] - 0.1 < high < ends[1]
    assert extend == "max"
    assert label == f"y (K) all values: {ends[0]:.4g} to 9999"
    values[7, 5] = -9999.0
    assert colour_limits_of(values)[2] == "both"
    # Many high values are no outliers, and of a field that is the same nearly everywhere the others are what matters.
    values = np.where(smooth(*of_globe()) > 0.6, 50.0, smooth(*of_globe()))
    assert colour_limits_of(values)[1:3] == (50.0, "neither")
    values = np.zeros_like(values)
    values[5, 5] = 3.0
    assert colour_limits_of(values)[:3] == (0.0, 3.0, "neither")


def test_pale_values_do_not_take_the_colours_of_the_others():
    values = smooth(*of_globe())
    pale = of_globe()[1] > 60
    assert colour_limits_of(np.where(pale, 30.0, values), pale)[1:3] == (values[~pale].max(), "max")


@pytest.mark.parametrize("west", [-180.0, 0.0])
def test_cells_over_either_edge_of_a_map_are_drawn_at_both(west):
    lon, lat = np.meshgrid(west + np.array([0.5, 2.5, 4.5]), [0.0, 2.0])
    for shift in (0.0, -5.0):  # over the western edge, and over the eastern one
        polygons, cells = cell_polygons(lon + shift, lat, west)
        twice = [polygons[cells == cell, :, 0] for cell in np.flatnonzero(np.bincount(cells) == 2)]
        assert twice
        for first, second in twice:
            assert np.allclose(np.abs(second - first), 360)
            both = np.concatenate([first, second])
            assert both.min() < west < both.min() + 3
            assert both.max() - 3 < west + 360 < both.max()


def test_values_without_known_places_are_a_row():
    unknown = np.full(5, np.nan)
    figure = draw_map(np.linspace(-1, 1, 5), (unknown, unknown), LOOK, pale=np.arange(5) < 2)
    assert figure.axes[0].get_xlabel() == "column"
    assert render_png(figure)
