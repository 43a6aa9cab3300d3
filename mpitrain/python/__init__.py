"""The functions for Python: the same settings, results and errors as the command line."""
