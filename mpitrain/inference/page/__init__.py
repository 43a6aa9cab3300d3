"""The part of a run's report that needs its network and data."""
