"""Write plain.zarr and sharded.zarr (Zarr 3): the same rain, whose dry chunks zarr-python does not store by itself."""

import numpy as np
import zarr

TIMES, ROWS, COLUMNS = 6, 8, 8
rain = np.zeros((TIMES, ROWS, COLUMNS), "f4")
rain[2:, :4] = np.arange(2, TIMES)[:, None, None]  # 2, 3, 4, 5 in the southern half, 0 elsewhere and before
tair = np.broadcast_to(280.0 + np.arange(TIMES)[:, None, None], rain.shape).astype("f4")


def write(folder, shards):
    group = zarr.open_group(folder, mode="w", zarr_format=3)

    def add(name, values, dimensions, chunks, shards=None, **attributes):
        array = group.create_array(
            name, shape=values.shape, chunks=chunks, shards=shards, dtype=values.dtype, fill_value=0,
            dimension_names=dimensions, attributes=attributes,
        )  # fmt: skip
        array[...] = values  # all of it; chunks that hold nothing but the fill value are left out

    every = ("time", "lat", "lon")
    add("time", np.arange(1.0, TIMES + 1), ("time",), (TIMES,), units="days since 2000-01-01")
    add("lat", 1.0 + np.arange(ROWS), ("lat",), (ROWS,), units="degrees_north")
    add("lon", 1.0 + np.arange(COLUMNS), ("lon",), (COLUMNS,), units="degrees_east")
    add("rain", rain, every, (1, 4, COLUMNS), shards, units="mm")
    add("tair", tair, every, (1, 4, COLUMNS), shards, units="K")


write("plain.zarr", None)
write("sharded.zarr", (3, ROWS, COLUMNS))
