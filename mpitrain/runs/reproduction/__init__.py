"""The record of a run, and training a run again from its record."""
