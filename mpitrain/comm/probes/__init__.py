"""Short measurements of what connects the ranks."""
