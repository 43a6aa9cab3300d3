"""A trainer for a running model: one C++ source for one network, with its C header and its Fortran module."""
