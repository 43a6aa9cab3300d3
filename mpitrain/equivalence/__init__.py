"""Proof that the Python package and the C++ MPI program compute the same: cases, traces, comparison, report."""
