"""Interpretation of data files by conventions and usual names: roles of dimensions, coordinates of variables, times."""
