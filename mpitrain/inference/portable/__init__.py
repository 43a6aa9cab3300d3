"""Prediction's own arithmetic: the same bits from numpy, C, C++ and Fortran, on any CPU."""
