"""The process inside a job: settings from the environment, run folder, start of the ranks, signals, restarts."""
