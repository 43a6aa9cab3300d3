"""Predictions of a trained network for data files, with derivatives, maps and a report."""
