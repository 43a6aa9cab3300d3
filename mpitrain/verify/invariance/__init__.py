"""The proof that a run's result depends on its data and settings alone: `mpitrain verify --invariance`."""
