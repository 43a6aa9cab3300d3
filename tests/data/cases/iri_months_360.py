"""Write iri.nc and named.nc: monthly rain on 'months since', of calendar '360' and of its CF name '360_day'."""

import numpy as np
from netCDF4 import Dataset

MONTHS, ROWS, COLUMNS = 24, 4, 5

for path, calendar in (("iri.nc", "360"), ("named.nc", "360_day")):
    with Dataset(path, "w", format="NETCDF3_CLASSIC") as file:
        for name, size in (("T", MONTHS), ("Y", ROWS), ("X", COLUMNS)):
            file.createDimension(name, size)
        time = file.createVariable("T", "f4", ("T",))
        time.setncatts(
            {"standard_name": "time", "long_name": "Time", "pointwidth": np.float32(1), "calendar": calendar,
             "gridtype": np.int32(0), "units": "months since 1960-01-01"}
        )  # fmt: skip
        time[:] = np.arange(MONTHS) + 0.5
        for name, values, units in (
            ("Y", 10.0 + np.arange(ROWS), "degree_north"),
            ("X", np.arange(COLUMNS), "degree_east"),
        ):
            file.createVariable(name, "f4", (name,)).units = units
            file[name][:] = values
        rain = file.createVariable("prcp", "f4", ("T", "Y", "X"))
        rain.setncatts({"units": "mm/month", "missing_value": np.float32(-999)})
        month = np.arange(MONTHS) % 12 + 1
        rain[:] = np.broadcast_to(10.0 * month[:, None, None], (MONTHS, ROWS, COLUMNS))
        slow = file.createVariable("nino", "f4", ("T", "Y", "X"))
        slow.units = "K"
        slow[:] = np.broadcast_to(0.1 * np.arange(MONTHS)[:, None, None], (MONTHS, ROWS, COLUMNS))
