"""Times of time levels: the levels from which lagged values are taken, and levels that repeat others."""
