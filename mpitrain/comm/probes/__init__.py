"""Short measurements of the communication between the ranks."""
