"""Formats of data files: one file each, named in this table alone. Their readers, which load numpy, are in `files`."""

DEFAULT = None
TABLE = {
    "netcdf": "mpitrain.data.formats.netcdf:Netcdf",
    "hdf5": "mpitrain.data.formats.hdf5:Hdf5",
    "zarr": "mpitrain.data.formats.zarr:Zarr",
    "npz": "mpitrain.data.formats.npz:Npz",
    "pt": "mpitrain.data.formats.pt:Pt",
    "csv": "mpitrain.data.formats.csv:Csv",
    "parquet": "mpitrain.data.formats.parquet:Parquet",
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
"""Ends of the names of files or folders of each format, in lower case."""
CODE = "mpitrain.data.formats.code:CodeFormat"
