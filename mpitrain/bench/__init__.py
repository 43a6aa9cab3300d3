"""Measurements: collectives, the training step, scaling; medians and spreads from interleaved runs."""
