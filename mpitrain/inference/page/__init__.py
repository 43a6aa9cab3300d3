"""What the page of a run tells of its network on data."""
