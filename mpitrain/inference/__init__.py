"""A trained network applied to data files: predictions, derivatives, maps and their report."""
