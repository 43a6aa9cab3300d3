"""A format of a user: text files of named fields, each `name units times rows columns` and its numbers."""

import numpy as np


def read_fields(path, missing=-999.0):
    """Return the variables of a file by their names: dimensions, values and attributes."""
    words = iter(path.read_text().split())
    found = {}
    for name in words:
        units, num_times, num_rows, num_columns = next(words), *(int(next(words)) for _ in range(3))
        values = np.array([float(next(words)) for _ in range(num_times * num_rows * num_columns)])
        values[values == missing] = np.nan
        shape = (num_times, num_rows, num_columns)
        found[name] = (("time", "row", "column"), values.reshape(shape), {"units": units})
    return found


def read_nothing(path):
    """Fail, as a reader of a damaged file does."""
    raise ValueError("line 3 has no numbers")
