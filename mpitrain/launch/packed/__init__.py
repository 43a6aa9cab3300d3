"""A packed Python environment, unpacked on each host of a job before its ranks start."""
