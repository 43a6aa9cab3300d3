"""Generator of a trainer for a running model: the C++ source of one network, with a C header and a Fortran module."""
