"""Time as a value: where lagged values come from, and levels that repeat others."""
