"""The training loop, its step engines, optimisers, schedules and checkpoints."""
