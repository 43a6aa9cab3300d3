"""Checkpoints on the disk: their format, their store, and whether one fits a run."""
