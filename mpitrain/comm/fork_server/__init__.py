"""One process a node loads PyTorch and what else all ranks load, and forks the ranks: once the time, once the files.

It forks before MPI, CUDA or a thread has begun in it. The process that the launcher started stays, stands in for its
rank towards the launcher, and ends as the rank ends.
"""
