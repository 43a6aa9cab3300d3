"""The Python interface: the same settings, results and errors as the command line."""
