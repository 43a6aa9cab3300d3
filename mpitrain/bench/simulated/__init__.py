"""Steps on a cluster that is only described, simulated by SimGrid."""
