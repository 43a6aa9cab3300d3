"""Write wrfout.nc: WRF, whose time is XTIME along the dimension Time, and whose latitude is told by units alone."""

import numpy as np
from netCDF4 import Dataset, stringtochar

TIMES, ROWS, COLUMNS = 8, 6, 7
hours = 3 * np.arange(TIMES)
latitude = np.broadcast_to((50.0 + 4 * np.arange(ROWS))[:, None], (TIMES, ROWS, COLUMNS))
longitude = np.broadcast_to(10.0 + 5 * np.arange(COLUMNS), (TIMES, ROWS, COLUMNS))

with Dataset("wrfout.nc", "w") as file:
    for name, size in (("Time", None), ("DateStrLen", 19), ("south_north", ROWS), ("west_east", COLUMNS)):
        file.createDimension(name, size)
    times = file.createVariable("Times", "S1", ("Time", "DateStrLen"))
    times[:] = stringtochar(np.array([f"2020-01-01_{hour:02d}:00:00" for hour in hours], "S19"))
    xtime = file.createVariable("XTIME", "f4", ("Time",))
    xtime.setncatts(
        {"FieldType": np.int32(104), "MemoryOrder": "0  ", "description": "minutes since 2020-01-01 00:00:00",
         "units": "minutes since 2020-01-01 00:00:00"}
    )  # fmt: skip
    xtime[:] = 60 * hours

    def add(name, values, description, units, coordinates):
        variable = file.createVariable(name, "f4", ("Time", "south_north", "west_east"))
        variable.setncatts(
            {"FieldType": np.int32(104), "MemoryOrder": "XY ", "description": description, "units": units,
             "coordinates": coordinates}
        )  # fmt: skip
        variable[:] = values

    add("XLAT", latitude, "LATITUDE, SOUTH IS NEGATIVE", "degree_north", "XLONG XLAT")
    add("XLONG", longitude, "LONGITUDE, WEST IS NEGATIVE", "degree_east", "XLONG XLAT")
    hour = hours[:, None, None]
    add("T2", 200.0 + latitude, "TEMP at 2 M", "K", "XLONG XLAT XTIME")
    add("U10", 0.1 * hour + 0.01 * longitude, "U at 10 M", "m s-1", "XLONG XLAT XTIME")
