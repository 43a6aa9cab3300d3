"""Verification that Python and the C++ program compute the same numbers."""
