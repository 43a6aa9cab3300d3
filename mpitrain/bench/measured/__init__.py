"""What is measured of a run's own engine, on the settings of a run."""
