"""One protocol for every format of data file."""
