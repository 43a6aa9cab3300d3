"""Portable arithmetic for predictions: the same bits in numpy, C, C++ and Fortran, on any CPU."""
