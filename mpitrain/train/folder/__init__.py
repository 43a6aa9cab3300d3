"""A run folder that others may have written: its settings, its users, and the files made in it."""
