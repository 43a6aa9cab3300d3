"""Checkpoints on the disk: their format, their store, and the check that one fits a run."""
