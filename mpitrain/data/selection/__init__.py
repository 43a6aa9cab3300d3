"""Selection of samples: which variables, times and points are read from the files."""
