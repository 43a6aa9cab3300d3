"""Table of the formats of data files. Their readers are in `mpitrain.data.files`, because they load numpy."""

DEFAULT = None
TABLE = {
    "netcdf": "mpitrain.data.formats.built_in:Netcdf",
    "hdf5": "mpitrain.data.formats.built_in:Hdf5",
    "zarr": "mpitrain.data.formats.built_in:Zarr",
    "npz": "mpitrain.data.formats.built_in:Npz",
    "pt": "mpitrain.data.formats.built_in:Pt",
    "csv": "mpitrain.data.formats.built_in:Csv",
    "parquet": "mpitrain.data.formats.built_in:Parquet",
}
SUFFIXES = {
    "netcdf": (".nc", ".nc4", ".cdf"),
    "hdf5": (".h5", ".hdf5", ".he5", ".hdf"),
    "zarr": (".zarr",),
    "npz": (".npz",),
    "pt": (".pt", ".pth"),
    "csv": (".csv",),
    "parquet": (".parquet", ".pq"),
}
"""Suffixes of files or folders of each format, in lower case."""
CODE = "mpitrain.data.formats.code:CodeFormat"
