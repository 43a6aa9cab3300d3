"""Slurm, PBS, Torque, this host, and by hand: one file each, with its settings, its script and its start of ranks."""
