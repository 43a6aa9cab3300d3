"""What runs inside of a job: settings from its environment, run folder, ranks, signals, restarts, hosts."""
