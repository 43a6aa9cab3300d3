"""Synthetic fields and CICE history files whose best possible error is known."""
