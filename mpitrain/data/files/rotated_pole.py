"""True latitude and longitude of rotated-pole grids whose file has only rotated coordinates.

J, I  rows and columns
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.decoding import read_column
from mpitrain.data.files.overlay import Overlay
from mpitrain.data.files.variable import FieldFile, VariableInfo, Variables

Array = npt.NDArray[np.float64]
_MAPPING = "rotated_latitude_longitude"
_MOST_POINTS = 50_000_000
_ATTRIBUTES = {
    "lat": {"standard_name": "latitude", "long_name": "latitude, from the rotated pole", "units": "degrees_north"},
    "lon": {"standard_name": "longitude", "long_name": "longitude, from the rotated pole", "units": "degrees_east"},
}


def with_true_coordinates(file: FieldFile) -> FieldFile:
    """Return the file with true `lat` and `lon` added; unchanged if it has no rotated grid, or has them already."""
    pole = next((one for one in file.variables.values() if one.text("grid_mapping_name") == _MAPPING), None)
    rows, columns = (_rotated(name, file.variables) for name in ("grid_latitude", "grid_longitude"))
    if pole is None or rows is None or columns is None or rows.shape[0] * columns.shape[0] > _MOST_POINTS:
        return file
    standard_names = {one.text("standard_name") for one in file.variables.values()}
    if set(_ATTRIBUTES) & set(file.variables) or {"latitude", "longitude"} & standard_names:
        return file
    angles = _pole_of(pole)
    if angles is None:
        return file
    latitude, longitude = np.meshgrid(read_column(file, rows), read_column(file, columns), indexing="ij")
    lat, lon = true_coordinates(latitude, longitude, *angles)
    dimensions = (rows.dimensions[0], columns.dimensions[0])
    return Overlay(
        file,
        [
            (VariableInfo(name, dimensions, values.shape, values.dtype.str, _ATTRIBUTES[name]), values)
            for name, values in (("lat", lat), ("lon", lon))
        ],
    )


def true_coordinates(
    latitude: Array, longitude: Array, pole_latitude: float, pole_longitude: float, north_pole_longitude: float
) -> tuple[Array, Array]:
    """Return true latitude and longitude of points given in rotated coordinates, all in degrees.

    The pole is given as in CF's grid mapping: true latitude and longitude of the rotated north pole, and the rotated
    longitude of the true north pole.
    """
    y, x = np.radians(latitude), np.radians(longitude - north_pole_longitude)
    sine, cosine = np.sin(np.radians(pole_latitude)), np.cos(np.radians(pole_latitude))
    towards_pole = cosine * np.sin(y) - sine * np.cos(y) * np.cos(x)
    east = np.degrees(np.arctan2(-np.cos(y) * np.sin(x), towards_pole))
    north = np.degrees(np.arcsin(np.clip(cosine * np.cos(y) * np.cos(x) + sine * np.sin(y), -1.0, 1.0)))
    return north, (east + pole_longitude + 180.0) % 360.0 - 180.0


def _rotated(standard_name: str, variables: Variables) -> VariableInfo | None:
    found = [one for one in variables.values() if one.text("standard_name") == standard_name and one.is_numeric]
    along = [one for one in found if one.dimensions == (one.short_name,)]
    return along[0] if len(along) == 1 else None


def _pole_of(info: VariableInfo) -> tuple[float, float, float] | None:
    names = ("grid_north_pole_latitude", "grid_north_pole_longitude", "north_pole_grid_longitude")
    found = [info.attributes.get(name, default) for name, default in zip(names, (None, None, 0.0), strict=True)]
    numbers = [float(one) for one in found if isinstance(one, int | float)]
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == len(names) else None
