"""What a run tells its user: progress, the metrics file, logs, the report and the closing lines."""
