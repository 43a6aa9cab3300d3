"""Files as scientists have them, behind one small protocol: NetCDF, HDF5, `.npz` and `.pt`."""
