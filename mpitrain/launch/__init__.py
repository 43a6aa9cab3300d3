"""A job request in, script text out: Slurm, PBS, this host, by hand. Serves login nodes: loads no torch and no MPI."""
