"""A trained network as a file for other programs."""
