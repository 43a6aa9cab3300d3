"""A process for each rank that keeps the time and names the rank that does not arrive."""
