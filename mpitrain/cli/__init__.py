"""The command line: each command parses its arguments and calls one function. Parsing loads no torch and no mpi4py."""
