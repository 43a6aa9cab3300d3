"""The proof that Python and the C++ program compute the same."""
