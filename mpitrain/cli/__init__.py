"""The commands: arguments in, one call out. Parsing loads neither torch nor mpi4py."""
