"""Experiment trackers of others, told of each epoch by the root; each loads its library only where it is asked for."""
