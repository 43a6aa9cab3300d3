"""Checks that a run's result depends on its data and settings only: `mpitrain verify --invariance`."""
