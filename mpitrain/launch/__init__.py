"""A job request in, script text out: Slurm, PBS, this host, by hand. Loads no torch and no MPI: it serves login nodes."""
