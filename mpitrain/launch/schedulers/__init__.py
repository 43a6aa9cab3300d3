"""Schedulers: Slurm, PBS, Torque, this host, and by hand. One file each: its script, and its start of the ranks."""
