"""Measurements: collectives between the ranks, the training step, scaling; medians and spreads from interleaved runs."""
