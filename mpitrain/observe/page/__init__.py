"""The parts of a run's page that say what it found: skill, derivatives, where the errors are, the settings in words."""
