"""The doctor: what is wrong with this environment or launch, found before it costs a run, with its fix."""
