"""Trained networks at work: predictions with their errors and derivatives, maps, and exported models."""
