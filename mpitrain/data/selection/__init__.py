"""Which variables, times and points of the files are samples."""
