"""What a data file means: conventions and usual names, the role of each dimension and why, the places of variables."""
