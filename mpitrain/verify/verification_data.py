"""The history file that verification runs on: synthetic, with the edges of every selection rule planted."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from mpitrain.data import CICE_INPUTS, CICE_TARGET
from mpitrain.data.describe.names import CICE_LATITUDE, CICE_LONGITUDE, CICE_OCEAN_MASK
from mpitrain.synthetic.history import write_history_fields, write_synthetic_history


def write_verification_history(path: Path, seed: int = 20) -> None:
    """Write a small history file in which a rule that is off by one comparison selects other samples."""
    fields = _synthetic_fields(seed)
    aice, latitude, mask = fields[CICE_TARGET][0], fields[CICE_LATITUDE], fields[CICE_OCEAN_MASK]
    ice = np.argwhere((aice > 0) & (aice <= 1) & (np.abs(latitude) > 62))
    points = ice[:: max(1, len(ice) // 24)]
    # aice == 1 is a sample, aice == 0 is none; a latitude of exactly 40 or 60 is not beyond it.
    for j, i in points[0::4]:
        aice[j, i] = 1.0
    for j, i in points[1::4]:
        aice[j, i] = 0.0
    for number, (j, i) in enumerate(points[2::4]):
        latitude[j, i] = np.sign(latitude[j, i]) * (40.0 if number % 2 else 60.0)
    for j, i in points[3::4]:
        mask[j, i] = 0.0  # not ocean, though its fields hold values
    write_history_fields(path, fields)


def _synthetic_fields(seed: int) -> dict[str, np.ndarray[Any, Any]]:
    import netCDF4

    with TemporaryDirectory() as folder:
        path = Path(folder) / "history.nc"
        write_synthetic_history(path, seed=seed, num_latitudes=60, num_longitudes=90)
        with netCDF4.Dataset(str(path)) as dataset:
            dataset.set_auto_maskandscale(False)
            return {
                name: np.array(dataset[name][:])
                for name in (CICE_LATITUDE, CICE_LONGITUDE, CICE_OCEAN_MASK, CICE_TARGET, *CICE_INPUTS)
            }
