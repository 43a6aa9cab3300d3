"""Write drifters.nc: observations one after the other; the missing_value of one variable is text, no number."""

import h5py
import numpy as np
from netCDF4 import Dataset

COUNT = 200
number = np.arange(COUNT)
temp = (1.0 + number % 4).astype("f4")  # 1, 2, 3, 4
temp[number % 10 == 9] = -999.0  # 20 of them
salt = (30.0 + number % 2).astype("f4")
salt[number % 20 == 0] = -999.0  # 10 others

with Dataset("drifters.nc", "w") as file:
    file.createDimension("obs", COUNT)
    for name, values, units in (
        ("lat", -40.0 + 0.1 * number, "degrees_north"), ("lon", 0.5 * number, "degrees_east"),
        ("temp", temp, "degC"), ("salt", salt, "1e-3"),
    ):  # fmt: skip
        variable = file.createVariable(name, "f4", ("obs",))
        variable.set_auto_maskandscale(False)
        variable.units = units
        variable[:] = values
    file["salt"].missing_value = np.float32(-999)

# netCDF4 refuses to write it so; other libraries do not ask.
with h5py.File("drifters.nc", "a") as file:
    file["temp"].attrs["missing_value"] = np.bytes_("-999.")
