"""Parts of a run's report page: skill, derivatives, maps of errors, description of the settings."""
