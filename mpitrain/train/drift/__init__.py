"""Ranks that no longer hold the same weights: noticed, named, and ended before anything of them is saved."""
