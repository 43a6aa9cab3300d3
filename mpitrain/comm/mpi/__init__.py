"""MPI through mpi4py: communicator, process group for torch, memory shared by a node."""
